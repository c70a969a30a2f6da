/** `ci-verdict REPORT CHECK TESTS`: says what CI found; the last line is `N passed, N failed`. */
import { readFileSync } from 'node:fs'
import { verdict } from './verdict.ts'

const [path = '', check = '', tests = ''] = process.argv.slice(2)
let report: unknown
try {
  report = JSON.parse(readFileSync(path, 'utf8'))
} catch {
  report = undefined
}
const { lines, ok } = verdict(report, { check: check === 'passed', tests: tests === 'passed' })
for (const line of lines) console.log(line)
process.exitCode = ok ? 0 : 1
