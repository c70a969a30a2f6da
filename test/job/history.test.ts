import { describe, expect, test } from 'vitest'
import { StepHistory } from '../../src/job/history.ts'
import type { StepRecord } from '../../src/store/job.ts'

const step = (name: string, position: number, type: StepRecord['type'] = 'memo'): StepRecord => ({
  name,
  position,
  type,
  state: 'done',
  result: null,
  resultVersion: 1,
  fence: 1n,
})

describe('the stored steps of an operation and the code that resumes it', () => {
  test('a resumed handler meets its steps by name and place', () => {
    const history = new StepHistory([step('a', 0), step('c', 2)], true)
    expect(history.start('a', 'memo').stored?.name).toBe('a')
    // Started before, and not stored: its owner died on it.
    expect(history.start('b', 'memo')).toEqual({ name: 'b', position: 1, stored: undefined })
    expect(history.start('c', 'memo').stored?.position).toBe(2)
    expect(() => history.end()).not.toThrow()
  })

  test.each([
    ['another name in its place', ['b'], 'memo'],
    ['a step in front of it', ['new', 'a'], 'memo'],
    ['another sort', ['a'], 'effect'],
  ] as const)('PROTOCOL C12: %s is STEP_CHANGED', (_what, names, type) => {
    const history = new StepHistory([step('a', 0)], true)
    expect(() => names.map((name) => history.start(name, type))).toThrow(
      expect.objectContaining({ code: 'STEP_CHANGED' }),
    )
  })

  test('PROTOCOL C12: ending without a stored step is STEP_CHANGED', () => {
    const history = new StepHistory([step('a', 0), step('b', 1)], true)
    history.start('a', 'memo')
    expect(() => history.end()).toThrow(expect.objectContaining({ code: 'STEP_CHANGED' }))
  })

  test('unordered steps are compared by name alone', () => {
    const history = new StepHistory([step('a', 1), step('b', 0)], false)
    expect(history.start('a', 'memo').stored?.name).toBe('a')
    expect(history.start('b', 'memo').stored?.name).toBe('b')
    expect(() => history.end()).not.toThrow()
  })

  test('a name is used once, and is short and plain', () => {
    const history = new StepHistory([], true)
    history.start('a', 'memo')
    expect(() => history.start('a', 'memo')).toThrow(TypeError)
    for (const name of ['', 'a b', 'ä', 'x'.repeat(101)]) expect(() => history.start(name, 'memo')).toThrow(TypeError)
  })
})
