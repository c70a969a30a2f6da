/** When a run that does not settle is given up: not by a clock that a busy machine can outrun. */
import { expect, test } from 'vitest'
import { Patience } from '../../src/drill/run/patience.ts'

function patience(usual = 1) {
  let now = 0
  const one = new Patience({ settleMs: 3_000, usual: () => usual, clock: () => now })
  return {
    one,
    /** Lets time pass. */
    pass: (ms: number): void => {
      now += ms
    },
  }
}

test('patience: however long it takes, nothing is given up while no try has failed', () => {
  const { one, pass } = patience()
  pass(30_000)
  expect(one.over).toBe(false)
  one.inVain(0)
  one.inVain(2_999)
  expect(one.over).toBe(false)
})

test('patience: two tries that were begun when every lease was over, and failed, are enough', () => {
  const { one, pass } = patience()
  pass(3_000)
  one.inVain(one.now)
  expect(one.over).toBe(false)
  one.inVain(one.now)
  expect(one.over).toBe(true)
})

test('patience: something new begins the time again, and so does the end of what is done to the handler', async () => {
  const { one, pass } = patience()
  pass(3_000)
  one.inVain(one.now)
  one.news()
  one.inVain(one.now)
  pass(2_999)
  one.inVain(one.now)
  expect(one.over).toBe(false)
  const held = one.hold(
    Promise.resolve().then(() => {
      pass(9_000)
      for (let times = 0; times < 9; times += 1) one.inVain(one.now)
      one.silent(0, false)
    }),
  )
  await held
  expect(one.over).toBe(false)
  pass(2_999)
  one.inVain(one.now)
  one.inVain(one.now)
  expect(one.over).toBe(false)
})

test('patience: a step that one process repeats much more often than usual gets it nowhere', () => {
  const { one, pass } = patience(3)
  for (let times = 0; times < 1_000; times += 1) one.again(1, 'sql:select from runs')
  pass(3_000)
  for (let times = 0; times < 12; times += 1) {
    one.again(1, 'sql:select from runs')
    one.again(2, 'sql:select from runs')
    one.again(1, 'sql:insert into runs')
  }
  expect(one.over).toBe(false)
  one.again(1, 'sql:select from runs')
  expect(one.over).toBe(true)
})

test('patience: silence counts when it has lasted as long, and longer while a server owes an answer', () => {
  const { one, pass } = patience()
  pass(4_000)
  one.silent(1_500, false)
  expect(one.over).toBe(false)
  pass(3_000)
  one.silent(1_500, true)
  expect(one.over).toBe(false)
  one.silent(1_500, false)
  expect(one.over).toBe(true)
})

test('patience: what gets on for ever and never ends is given up after a minute', () => {
  const { one, pass } = patience()
  for (let seconds = 0; seconds < 62; seconds += 1) {
    pass(1_000)
    one.news()
  }
  expect(one.over).toBe(false)
  pass(1_000)
  expect(one.over).toBe(true)
})
