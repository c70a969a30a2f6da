/**
 * `npm run check`: everything that can be said about the repository without starting a server.
 *
 * Steps run two at a time; what a step prints is shown only when it fails. `npm run check -- lint types` runs those.
 */
import { spawn } from 'node:child_process'
import { performance } from 'node:perf_hooks'

interface Step {
  readonly name: string
  readonly command: string
  /** Steps that must have ended well before. */
  readonly after?: readonly string[]
}

const steps: readonly Step[] = [
  { name: 'build', command: 'npm run build --silent' },
  { name: 'lint', command: 'oxlint --type-aware --deny-warnings' },
  { name: 'types', command: 'tsc -p tsconfig.json' },
  { name: 'format', command: 'biome ci --diagnostic-level=error .' },
  { name: 'layers', command: 'depcruise src --config .dependency-cruiser.mjs --output-type err' },
  { name: 'sql', command: 'tsx scripts/check-sql.ts' },
  { name: 'links', command: 'tsx scripts/check-links.ts' },
  { name: 'errors', command: 'tsx scripts/check-errors-doc.ts' },
  { name: 'guarantees', command: 'tsx scripts/check-guarantees.ts' },
  { name: 'dead code', command: 'knip --no-progress' },
  { name: 'exports', command: 'tsx scripts/check-exports.ts', after: ['build'] },
  { name: 'api', command: 'tsx scripts/api.ts --check', after: ['build'] },
  { name: 'examples', command: 'tsc -p examples/tsconfig.json && tsx scripts/check-examples.ts', after: ['build'] },
  { name: 'package', command: 'tsx scripts/check-package.ts', after: ['build'] },
]
const AT_ONCE = 2

interface Ended {
  readonly step: Step
  readonly ok: boolean
  readonly output: string
  readonly seconds: number
}

function run(step: Step): Promise<Ended> {
  const start = performance.now()
  return new Promise((resolve) => {
    const env = { ...process.env, FORCE_COLOR: '0', PATH: `node_modules/.bin:${process.env['PATH'] ?? ''}` }
    const child = spawn(step.command, { shell: true, env, stdio: ['ignore', 'pipe', 'pipe'] })
    const chunks: Buffer[] = []
    child.stdout.on('data', (chunk: Buffer) => chunks.push(chunk))
    child.stderr.on('data', (chunk: Buffer) => chunks.push(chunk))
    child.on('close', (code) => {
      const output = Buffer.concat(chunks).toString().trimEnd()
      resolve({ step, ok: code === 0, output, seconds: (performance.now() - start) / 1000 })
    })
  })
}

function tell({ step, ok, output, seconds }: Ended): void {
  const last = output.split('\n').at(-1) ?? ''
  console.log(`${ok ? 'ok  ' : 'FAIL'} ${step.name.padEnd(10)} ${seconds.toFixed(1).padStart(5)} s  ${ok ? last : ''}`)
  if (!ok) console.log(`     $ ${step.command}\n${output.replaceAll(/^/gm, '     ')}`)
}

const asked = process.argv.slice(2)
const unknown = asked.filter((name) => !steps.some((step) => step.name === name))
if (unknown.length > 0) {
  console.error(`no such step: ${unknown.join(', ')}; known: ${steps.map(({ name }) => name).join(', ')}`)
  process.exit(2)
}
const start = performance.now()
const waiting = steps.filter(({ name }) => asked.length === 0 || asked.includes(name))
const ended = new Map<string, Ended>()
const running = new Map<string, Promise<void>>()
while (waiting.length > 0 || running.size > 0) {
  const ready = waiting.findIndex(({ after = [] }) =>
    after.every((name) => ended.has(name) || (!running.has(name) && !waiting.some((step) => step.name === name))),
  )
  if (ready >= 0 && running.size < AT_ONCE) {
    const [step] = waiting.splice(ready, 1)
    if (step === undefined) break
    if (step.after?.some((name) => ended.get(name)?.ok === false) === true) {
      const skipped = { step, ok: false, output: `not run: ${step.after.join(', ')} failed`, seconds: 0 }
      ended.set(step.name, skipped)
      tell(skipped)
      continue
    }
    running.set(
      step.name,
      run(step).then((result) => {
        running.delete(step.name)
        ended.set(step.name, result)
        tell(result)
      }),
    )
  } else {
    await Promise.race(running.values())
  }
}
const failed = [...ended.values()].filter(({ ok }) => !ok).map(({ step }) => step.name)
const took = `${((performance.now() - start) / 1000).toFixed(0)} s`
if (failed.length > 0) {
  console.error(`check failed after ${took}: ${failed.join(', ')}`)
  process.exitCode = 1
} else {
  console.log(`check passed in ${took}`)
}
