/** Runs tests of one file by name in a copy of the sources, within a bound. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'

/** Full names. `error`: why there is no result of the tests. */
export interface TestRun {
  readonly passed: readonly string[]
  readonly failed: readonly string[]
  readonly error: string | undefined
}

export interface Bounds {
  readonly postgresUrl: string
  readonly boundMs: number
  /** Whether the first failure is enough. */
  readonly bail: boolean
}

export async function runTests(
  root: string,
  file: string,
  names: readonly string[],
  { postgresUrl, boundMs, bail }: Bounds,
): Promise<TestRun> {
  const report = join(root, 'report.json')
  rmSync(report, { force: true })
  const child = spawn(
    process.execPath,
    [
      join(root, 'node_modules/vitest/vitest.mjs'),
      'run',
      file,
      '--config=scripts/mutants/vitest.config.ts',
      '--root=.',
      '--reporter=json',
      `--outputFile=${report}`,
      '--testNamePattern',
      [...new Set(names)].map(escaped).join('|'),
      ...(bail ? ['--bail', '1'] : []),
    ],
    // A process group of its own, so that its bound ends what it has started too.
    { cwd: root, detached: true, stdio: 'ignore', env: { ...process.env, MUTANTS_POSTGRES_URL: postgresUrl } },
  )
  const closed = once(child, 'close')
  let late = false
  const timer = setTimeout(() => {
    late = true
    endGroup(child.pid)
  }, boundMs)
  await closed
  clearTimeout(timer)
  endGroup(child.pid)
  if (late) return { passed: [], failed: [], error: `no end within ${boundMs / 1000} s` }
  return readReport(report)
}

/** What Vitest writes as JSON. */
interface Report {
  readonly testResults: readonly {
    readonly message: string
    readonly assertionResults: readonly { readonly fullName: string; readonly status: string }[]
  }[]
}

function readReport(path: string): TestRun {
  let report: Report
  try {
    report = JSON.parse(readFileSync(path, 'utf8')) as Report
  } catch {
    return { passed: [], failed: [], error: 'the tests could not be started' }
  }
  const results = report.testResults.flatMap(({ assertionResults }) => assertionResults)
  const named = (status: string) => results.filter((one) => one.status === status).map(({ fullName }) => fullName)
  const [message] = report.testResults.map((one) => one.message).filter((text) => text !== '')
  const [passed, failed] = [named('passed'), named('failed')]
  return {
    passed,
    failed,
    error: passed.length + failed.length === 0 ? (message ?? 'no test has the name') : undefined,
  }
}

function escaped(name: string): string {
  return name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')
}

function endGroup(pid: number | undefined): void {
  if (pid === undefined) return
  try {
    process.kill(-pid, 'SIGKILL')
  } catch {
    // Nothing of it is left.
  }
}
