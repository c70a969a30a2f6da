import { expect, test } from 'vitest'
import { Slots } from '../../src/drill/run/slots.ts'

test('slots: no more work at once than there are, but a lent one is used meanwhile and taken back behind that', async () => {
  const slots = new Slots(1)
  const seen: string[] = []
  let end: () => void = () => {}
  const first = slots.use(async () => {
    seen.push('first')
    await slots.lend(new Promise<void>((resolve) => (end = resolve)))
    seen.push('first again')
  })
  const second = slots.use(async () => {
    seen.push('second')
    end()
    await new Promise((resolve) => setImmediate(resolve))
    seen.push('second ends')
  })
  await Promise.all([first, second, slots.use(async () => seen.push('third'))])
  expect(seen).toEqual(['first', 'second', 'second ends', 'third', 'first again'])
})
