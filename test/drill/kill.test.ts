import { expect, inject, test } from 'vitest'
import { drill } from '../../src/drill/drill.ts'

const options = { databaseUrl: inject('postgresUrl'), throwAway: 'postgres' }

test('R48: a death at each boundary is found, and deaths that leave the same are run once', async () => {
  const result = await drill('test/drill/handlers/check-then-insert.ts', options)
  expect(result.windows.map(({ name, verdict, reached }) => `${name}: ${reached ? verdict : 'not reached'}`)).toEqual([
    'no fault: one effect',
    'kill before sql:1:select from orders: one effect',
    'kill after sql:1:select from orders: one effect',
    'kill before sql:2:insert into orders: one effect',
    'kill after sql:2:insert into orders: one effect',
  ])
  expect(result.run).toBe(3)
}, 60_000)
