import { expect, test } from 'vitest'
import { Turns } from '../../src/drill/run/turns.ts'

test('turns: any number go on together, one that needs all is alone, and nobody who waits is forgotten', async () => {
  const turns = new Turns()
  const now: string[] = []
  const seen: string[] = []
  const work = (name: string) => async () => {
    now.push(name)
    seen.push([...now].sort().join(''))
    await new Promise((resolve) => setImmediate(resolve))
    now.splice(now.indexOf(name), 1)
    return name
  }
  const done = await Promise.all([
    turns.together(work('a')),
    turns.together(work('b')),
    turns.alone(work('X')),
    turns.alone(work('Y')),
    turns.together(work('c')),
    turns.together(work('d')),
  ])
  expect(done).toEqual(['a', 'b', 'X', 'Y', 'c', 'd'])
  expect(seen).toContain('ab')
  for (const at of seen) expect(at.length === 1 || !/[XY]/.test(at), at).toBe(true)
})
