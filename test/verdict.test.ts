import { describe, expect, test } from 'vitest'
import { verdict } from '../scripts/verdict.ts'

const of = (...statuses: string[]) => ({
  testResults: [
    {
      name: 'a.test.ts',
      status: statuses.includes('failed') ? 'failed' : 'passed',
      assertionResults: statuses.map((status, index) => ({ status, fullName: `t${index}` })),
    },
  ],
})
const good = { check: true, tests: true }

describe('CI verdict', () => {
  test('all passed is ok, and the last line has the counts alone', () => {
    expect(verdict(of('passed', 'passed'), good)).toEqual({ lines: ['2 passed, 0 failed'], ok: true })
  })

  test('a failed, skipped or todo test, a failed check and an error outside of a test each fail the run', () => {
    for (const status of ['failed', 'skipped', 'pending', 'todo']) {
      expect(verdict(of('passed', status), good).ok).toBe(false)
    }
    expect(verdict(of('passed', 'skipped'), good).lines).toEqual(['skipped, which fails CI: t1', '1 passed, 0 failed'])
    expect(verdict(of('passed'), { check: false, tests: true }).ok).toBe(false)
    const outside = verdict(of('passed'), { check: true, tests: false })
    expect(outside).toMatchObject({ ok: false })
    expect(outside.lines.at(-1)).toBe('1 passed, 1 failed')
  })

  test('a file that broke before its tests, an empty run and a missing report fail the run', () => {
    const broken = { testResults: [{ name: 'b.test.ts', status: 'failed', message: 'no', assertionResults: [] }] }
    expect(verdict(broken, good).lines.at(-1)).toBe('0 passed, 1 failed')
    expect(verdict(of(), good).ok).toBe(false)
    expect(verdict(undefined, good)).toMatchObject({
      ok: false,
      lines: ['the test run left no report', '0 passed, 1 failed'],
    })
  })
})
