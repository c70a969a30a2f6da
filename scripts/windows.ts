/**
 * `npm run windows`: traces what this package does (scripts/windows/paths) statement by statement, publish by publish and
 * call by call, makes the list of windows out of the traces, kills a real process in each of them, delivers again, and
 * counts the effects.
 *
 * `--only TEXT` paths whose name holds it, several with | between · `--workers N` paths at once, 1 to 8, default 3 ·
 * `--trace` only says what the paths do · `--json` a last line but one with everything, for programs.
 * The last line is `windows: 160 found, 160 reached`. The exit code is 1 when one was not reached, when fewer than 150
 * were found, or when a death doubled, lost or stuck something; with `--only` the number is not looked at.
 */
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { compile } from '../src/drill/file/compile.ts'
import type { DrillFile } from '../src/drill/file/format.ts'
import { steps as storyOf } from '../src/drill/report/story.ts'
import { boundaryText } from '../src/drill/run/boundary.ts'
import { isGood } from '../src/drill/run/judge.ts'
import { startPostgres } from '../src/testing/services/postgres.ts'
import { startRabbit } from '../src/testing/services/rabbitmq.ts'
import { type PathResult, runPath } from './windows/run.ts'
import { summary } from './windows/summary.ts'

const SOURCE = resolve('scripts/windows/paths/entry.ts')
const WORKERS_MAX = 8
/** Deaths of one path at once: most of the time they wait for what a dead owner held. */
const LINES = 2

const { values: asked } = parseArgs({
  options: {
    only: { type: 'string' },
    workers: { type: 'string', default: '3' },
    trace: { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
  },
})
const workers = Number(asked.workers)
if (!Number.isInteger(workers) || workers < 1 || workers > WORKERS_MAX) fail(`--workers takes 1 to ${WORKERS_MAX}`)

const began = performance.now()
const [compiled, postgres, rabbit] = await Promise.all([
  compile(SOURCE),
  startPostgres({ forgetful: true }),
  startRabbit(),
])
const results: PathResult[] = []
const tried = new Set<string>()
/** Paths that could not be run at all. */
let failed = 0
try {
  const { paths } = (await import(compiled.url)) as { readonly paths: Readonly<Record<string, DrillFile>> }
  const wanted = asked.only?.split('|')
  const queue = Object.entries(paths).filter(([name]) => wanted?.some((one) => name.includes(one)) ?? true)
  if (queue.length === 0) fail(`no such path; known: ${Object.keys(paths).join(', ')}`)
  const vhosts = await vhostsOf(Math.min(workers, queue.length) * LINES)
  await Promise.all(
    Array.from({ length: vhosts.length / LINES }, async (_, worker) => {
      const amqpUrls = vhosts.slice(worker * LINES, (worker + 1) * LINES)
      for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
        const [name, file] = next
        const servers = { databaseUrl: postgres.url, amqpUrls }
        const module = { ...compiled, source: SOURCE }
        try {
          const result = await runPath(name, file, module, servers, { traceOnly: asked.trace, tried })
          results.push(result)
          tell(result)
        } catch (error) {
          failed += 1
          console.log(`FAIL ${name}: ${error instanceof Error ? error.stack : String(error)}`)
        }
      }
    }),
  )
} finally {
  await Promise.all([postgres.stop(), rabbit.stop(), compiled.remove()])
}
const { line, ok, report } = summary(results, { partial: asked.only !== undefined || asked.trace })
console.log(`in ${Math.round((performance.now() - began) / 1_000)} s`)
if (asked.json) console.log(JSON.stringify(report))
console.log(line)
process.exitCode = ok && failed === 0 ? 0 : 1

function tell({ path, moments, windows, passing, broken, tookMs }: PathResult): void {
  const bad = windows.filter(({ good, reached }) => !good || !reached)
  const state = broken === undefined && bad.length === 0 ? 'ok  ' : 'FAIL'
  const deaths = windows.reduce((sum, { ran }) => sum + ran.length, 0)
  const steps = moments.filter(({ side }) => side === 'after')
  console.log(
    `${state} ${path.padEnd(48)} ${String(steps.length).padStart(3)} steps ${String(windows.length).padStart(3)} windows ` +
      `${String(deaths).padStart(3)} deaths  ${(tookMs / 1_000).toFixed(1)} s`,
  )
  if (asked.trace) {
    for (const { boundary, look } of steps) {
      const changed = look?.changed.map((table) => table.replace('effectively_once.', '')).join(', ') ?? ''
      console.log(`       ${boundaryText(boundary)} -> ${boundary.answer?.text ?? 'no answer'}  ${changed}`)
    }
  }
  for (const { name } of passing) console.log(`     not in most runs, so not counted: ${name}`)
  if (broken !== undefined) {
    console.log(`     without any fault: ${broken.verdict}`)
    for (const step of storyOf(broken)) console.log(`     ${step}`)
    console.log(broken.output)
  }
  for (const { name, ran } of bad) {
    for (const { name: death, run, reached } of ran) {
      if (reached && isGood(run.verdict)) continue
      console.log(`     ${reached ? run.verdict : 'NOT REACHED'}: ${death} (window: ${name})`)
      for (const step of storyOf(run)) console.log(`     ${step}`)
    }
  }
}

/** Virtual hosts of one node, so that paths do not take each other's messages. */
async function vhostsOf(count: number): Promise<readonly string[]> {
  const others = Array.from({ length: count - 1 }, (_, index) => `windows-${index + 2}`)
  const terms = others.map(
    (name) =>
      `rabbit_vhost:add(<<"${name}">>, <<"windows">>), ` +
      `rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"${name}">>, <<".*">>, <<".*">>, <<".*">>, <<"windows">>)`,
  )
  if (terms.length > 0) await rabbit.ctl('eval', `${terms.join(', ')}.`)
  return [rabbit.url, ...others.map((name) => rabbit.urlOf(name))]
}

function fail(message: string): never {
  console.error(message)
  process.exit(2)
}
