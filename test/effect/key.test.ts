import { expect, test } from 'vitest'
import { downstreamKey } from '../../src/effect/key.ts'

test('R16: keys of effects are the same for ever', () => {
  const id = '00112233-4455-6677-8899-aabbccddeeff'
  expect([
    downstreamKey(id, 'charge'),
    downstreamKey(id, 'charge', 1),
    downstreamKey(id, 'downstream mail'),
  ]).toMatchInlineSnapshot(`
    [
      "ad1929e9-1754-8e81-89f9-65236040a146",
      "2ea26756-bd74-8aea-a207-7a99c7e4008e",
      "d6a8f5a1-f17c-8509-878e-dc860cb47cbf",
    ]
  `)
})

test('a key is a UUID of version 8, and differs by operation, name and generation', () => {
  const ids = ['00112233-4455-6677-8899-aabbccddeeff', '00112233-4455-6677-8899-aabbccddee00']
  const keys = ids.flatMap((id) =>
    ['a', 'b', '1\na'].flatMap((name) => [0, 1, 11].map((n) => downstreamKey(id, name, n))),
  )
  expect(new Set(keys).size).toBe(keys.length)
  for (const key of keys) expect(key).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
})
