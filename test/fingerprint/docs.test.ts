import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { afterAll, describe, expect, test } from 'vitest'

const project = fileURLToPath(new URL('../../', import.meta.url))
const page = readFileSync(join(project, 'docs/fingerprint.md'), 'utf8')
const examples = [...page.matchAll(/```ts\n(.*?)```/gs)].map(([, code = '']) => code)
mkdirSync(join(project, '.tmp'), { recursive: true })
const folder = mkdtempSync(join(project, '.tmp/examples-'))

afterAll(() => rmSync(folder, { recursive: true }))

describe('docs/fingerprint.md', () => {
  test('has examples', () => {
    expect(examples.length).toBeGreaterThan(3)
  })

  test.each(examples.map((code, index) => ({ code, number: index + 1 })))(
    'example $number runs and its assertions hold',
    async ({ code, number }) => {
      const file = join(folder, `example-${number}.ts`)
      writeFileSync(file, code.replace("'effectively-once'", "'../../src/index.ts'"))
      await import(pathToFileURL(file).href)
    },
  )
})
