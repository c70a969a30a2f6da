/** One path from its trace to its verdicts, on handlers that are known to be right and wrong. */
import { resolve } from 'node:path'
import { expect, inject, test } from 'vitest'
import { runPath } from '../../scripts/windows/run.ts'
import { compile } from '../../src/drill/file/compile.ts'
import type { DrillFile } from '../../src/drill/file/format.ts'

async function windowsOf(handler: string): Promise<readonly string[]> {
  const source = resolve(`test/drill/handlers/${handler}.ts`)
  const compiled = await compile(source)
  try {
    const { default: file } = (await import(compiled.url)) as { readonly default: DrillFile }
    const servers = { databaseUrl: inject('postgresUrl'), amqpUrls: [''] }
    const { windows } = await runPath(handler, file, { ...compiled, source }, servers)
    return windows.flatMap(({ ran }) =>
      ran.map(({ name, run, reached }) => `${name}: ${reached ? run.verdict : 'missed'}`),
    )
  } finally {
    await compiled.remove()
  }
}

test('R48: a handler that can be repeated is killed in front of its statement and behind it, and has one effect', async () => {
  expect(await windowsOf('job')).toEqual([
    'kill before sql:1:insert into done: one effect',
    'kill after sql:1:insert into done: one effect',
  ])
}, 180_000)

test('R48: a call inside of a transaction is a window of its own, in which the effect doubles', async () => {
  expect(await windowsOf('charge-in-transaction')).toContain('kill after http:POST /v1/charges: DUPLICATE')
}, 180_000)
