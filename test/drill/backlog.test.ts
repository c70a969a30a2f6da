import { expect, test } from 'vitest'
import { Backlog } from '../../src/drill/run/backlog.ts'

test('backlog: nobody waits until there is too much of it, and its end waits for all and tells what failed', async () => {
  const backlog = new Backlog(2)
  const ends: (() => void)[] = []
  const open = (): Promise<void> => new Promise((resolve) => ends.push(resolve))
  await backlog.add(open)
  let added = false
  const second = backlog.add(open).then(() => {
    added = true
  })
  await new Promise((resolve) => setImmediate(resolve))
  expect(added).toBe(false)
  ends[0]?.()
  await second
  await backlog.add(() => Promise.reject(new Error('not removed'))).catch(() => {})
  ends[1]?.()
  await expect(backlog.done()).rejects.toThrow('not removed')
})
