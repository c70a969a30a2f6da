import { describe, expect, test } from 'vitest'
import { typeErrorsOf } from './compile.ts'

const using = (statement: string): string => `
import pg from 'pg'
import { createOnce } from '../src/index.ts'
import { postgres } from '../src/stores/postgres/index.ts'
const once = createOnce({ store: postgres(new pg.Pool({ max: 2 })) })
export const result = ${statement}
`

describe('types', () => {
  const errors = typeErrorsOf({
    complete: using(`once.transaction({ scope: ['acme', 'orders.create'], key: 'k', payload: {} }, async () => 1)`),
    noScope: using(`once.transaction({ key: 'k', payload: {} }, async () => 1)`),
    undefinedScope: using(`once.transaction({ scope: undefined, key: 'k', payload: {} }, async () => 1)`),
    noKey: using(`once.transaction({ scope: 'orders', payload: {} }, async () => 1)`),
    noPayload: using(`once.transaction({ scope: 'orders', key: 'k' }, async () => 1)`),
    statement: using(`once.statement({ key: 'k', payload: {} }, { text: 'select 1' })`),
    ownClient: using(
      `once.transaction({ scope: 'a', key: 'k', payload: 1 }, async ({ tx }) => { const own: pg.PoolClient = tx; return own.listenerCount("x") })`,
    ),
    unknownOption: using(`createOnce({ store: postgres(new pg.Pool(), { shema: 'x' }) })`),
  })

  test('T1: an operation without scope does not compile, in any call that takes one', () => {
    expect(errors['complete']).toEqual([])
    for (const name of ['noScope', 'undefinedScope', 'statement']) {
      expect(errors[name]?.join('\n')).toMatch(/scope/i)
    }
  })

  test('an operation without key or payload does not compile', () => {
    expect(errors['noKey']?.join('\n')).toMatch(/key/)
    expect(errors['noPayload']?.join('\n')).toMatch(/payload|fingerprint/)
  })

  test("tx in every callback is the user's own client type", () => {
    expect(errors['ownClient']).toEqual([])
  })

  test('a misspelt option does not compile', () => {
    expect(errors['unknownOption']?.join('\n')).toMatch(/shema/)
  })
})
