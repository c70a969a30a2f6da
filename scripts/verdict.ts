/** What a test run came to, from Vitest's JSON report and the exit codes. */

interface Assertion {
  readonly status: string
  readonly fullName: string
}

interface Report {
  readonly testResults: readonly {
    readonly name: string
    readonly status: string
    readonly message?: string
    readonly assertionResults: readonly Assertion[]
  }[]
}

export interface Verdict {
  /** For people; the last one is `N passed, N failed`. */
  readonly lines: readonly string[]
  readonly ok: boolean
}

/** Anything that is neither passed nor failed proved nothing, so it fails the run; so does a file without a result. */
export function verdict(report: unknown, steps: { readonly check: boolean; readonly tests: boolean }): Verdict {
  const lines: string[] = []
  if (!isReport(report)) {
    lines.push('the test run left no report')
    return { lines: [...lines, '0 passed, 1 failed'], ok: false }
  }
  const tests = report.testResults.flatMap(({ assertionResults }) => assertionResults)
  const passed = tests.filter(({ status }) => status === 'passed').length
  const failed = tests.filter(({ status }) => status === 'failed')
  const skipped = tests.filter(({ status }) => status !== 'passed' && status !== 'failed')
  const broken = report.testResults.filter(
    ({ status, assertionResults }) =>
      status === 'failed' && !assertionResults.some((assertion) => assertion.status === 'failed'),
  )
  for (const { fullName } of failed) lines.push(`failed: ${fullName}`)
  for (const { name, message = '' } of broken)
    lines.push(`failed before its tests ran: ${name} ${message.split('\n')[0]}`)
  for (const { fullName } of skipped) lines.push(`skipped, which fails CI: ${fullName}`)
  if (!steps.check) lines.push('npm run check failed')
  let failures = failed.length + broken.length
  if (!steps.tests && failures === 0) {
    lines.push('the test command failed although no test did: an error outside of a test, or the time was up')
    failures = 1
  }
  if (passed === 0) lines.push('no test passed')
  const ok = failures === 0 && skipped.length === 0 && passed > 0 && steps.check && steps.tests
  return { lines: [...lines, `${passed} passed, ${failures} failed`], ok }
}

function isReport(report: unknown): report is Report {
  return typeof report === 'object' && report !== null && 'testResults' in report && Array.isArray(report.testResults)
}
