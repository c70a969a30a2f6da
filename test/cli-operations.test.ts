/** The commands for people, through the same function as the command line, on a database. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { run } from '../src/cli/run.ts'
import { createOnce, type Once } from '../src/index.ts'
import { postgres } from '../src/stores/postgres/index.ts'
import { createDatabase } from './database.ts'

let database: { readonly url: string; drop(): Promise<void> }
let pool: pg.Pool
let once: Once<pg.PoolClient>
let folder: string

beforeAll(async () => {
  database = await createDatabase()
  pool = new pg.Pool({ connectionString: database.url, max: 3 })
  once = createOnce({ store: postgres(pool) })
  await once.migrate()
  folder = await mkdtemp(join(tmpdir(), 'effectively-once-cli-'))
  await writeFile(
    join(folder, 'effectively-once.config.mjs'),
    `import { createRequire } from 'node:module'
import { createOnce } from '${pathToFileURL(resolve('src/once.ts')).href}'
import { postgres } from '${pathToFileURL(resolve('src/stores/postgres/index.ts')).href}'
const pg = createRequire('${resolve('package.json')}')('pg')
export const once = createOnce({ store: postgres(new pg.Pool({ connectionString: '${database.url}', max: 1, allowExitOnIdle: true, idleTimeoutMillis: 100 })) })
`,
  )
})
afterAll(async () => {
  await pool.end()
  await database.drop()
  await rm(folder, { recursive: true, force: true })
})

async function cli(...words: string[]) {
  const [out, err]: [string[], string[]] = [[], []]
  const code = await run(words, '0.0.0', {
    out: (text) => out.push(text),
    err: (text) => err.push(text),
    env: {},
    cwd: folder,
    signal: new AbortController().signal,
  })
  return { code, out: out.join('\n'), err: err.join('\n') }
}

const PERSON = ['--actor', 'ann', '--reason', 'ticket 4711']
const letter = (key: string) =>
  once.run({ scope: ['acme', 'letter'], key, payload: null }, (op) =>
    op.effect('send', {
      request: null,
      delivery: 'at-most-once',
      call: () => Promise.reject(Object.assign(new Error('no answer'), { status: 500 })),
    }),
  )

test('I11, I16: an unknown effect is listed with its age and resolved by a person, who is written to the audit', async () => {
  await expect(letter('l-1')).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
  const listed = await cli('list', '--json')
  expect(listed.code).toBe(0)
  const { operations } = JSON.parse(listed.out) as {
    readonly operations: readonly { readonly id: string; readonly state: string; readonly unknownEffects: unknown }[]
  }
  expect(operations).toMatchObject([{ state: 'unknown', unknownEffects: [{ name: 'send' }] }])
  const id = operations[0]?.id ?? ''
  expect((await cli('list')).out).toMatch(new RegExp(`^${id} {2}unknown .*send \\(\\d+s\\)$`))
  const proof = ['--effect', 'send', '--found', '{"id":"t-1"}']
  expect(await cli('resolve', id, ...proof)).toMatchObject({ code: 2, err: expect.stringContaining('--actor') })
  expect(await cli('resolve', id, '--effect', 'send', ...PERSON)).toMatchObject({ code: 2 })
  expect(await cli('resolve', ...proof, ...PERSON)).toMatchObject({ code: 2 })
  expect(await cli('resolve', id, '--found', '{', ...PERSON)).toMatchObject({ code: 2 })
  expect(await cli('resolve', id, ...proof, ...PERSON, '--json')).toMatchObject({
    code: 0,
    out: '{"answer":"resolved"}',
  })
  expect(await cli('resolve', id, ...proof, ...PERSON)).toMatchObject({
    code: 1,
    err: expect.stringContaining('decided'),
  })
  expect(await letter('l-1')).toMatchObject({ state: 'succeeded', value: { id: 't-1' } })
  expect((await cli('list')).out).toBe('nothing waits')
  const { rows } = await pool.query('select actor, act, subject, reason from effectively_once.audit')
  expect(rows).toEqual([{ actor: 'ann', act: 'effect.resolve', subject: `${id}/send`, reason: 'ticket 4711' }])
})

test('SC54, I16: a parked operation is redriven by a person only', async () => {
  const work = (fails: boolean) =>
    once.run(
      { scope: 'parked', key: 'p-1', payload: null },
      () => {
        if (fails) throw new Error('no')
        return 'done'
      },
      { failuresMax: 1 },
    )
  await expect(work(true)).rejects.toThrow('no')
  await expect(work(false)).rejects.toMatchObject({ code: 'OPERATION_PARKED' })
  const { operations } = JSON.parse((await cli('list', '--state', 'parked', '--json')).out)
  const id = operations[0].id as string
  expect(await cli('redrive', id)).toMatchObject({ code: 2 })
  expect(await cli('redrive', id, ...PERSON)).toMatchObject({ code: 0, out: 'redriven' })
  expect(await work(false)).toMatchObject({ value: 'done' })
  expect(await cli('redrive', id, ...PERSON, '--json')).toMatchObject({ code: 1 })
})
