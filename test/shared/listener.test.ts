import { setImmediate as turn } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { tell } from '../../src/shared/listener.ts'

test('what a listener throws, and what its promise rejects with, ends nothing', async () => {
  const unhandled: unknown[] = []
  const note = (error: unknown) => unhandled.push(error)
  process.on('unhandledRejection', note)
  try {
    const told: string[] = []
    tell((event: string) => {
      told.push(event)
      throw new Error('at once')
    }, 'a')
    tell(async (event: string) => {
      told.push(event)
      throw new Error('later')
    }, 'b')
    tell(undefined, 'nobody listens')
    await turn()
    await turn()
    expect(told).toEqual(['a', 'b'])
    expect(unhandled).toEqual([])
  } finally {
    process.removeListener('unhandledRejection', note)
  }
})
