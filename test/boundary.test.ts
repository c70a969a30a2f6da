import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'

const BOUNDARY = /within the retention of (the|its) record, per scope, for effects inside the transaction/
const documents = readdirSync('docs', { recursive: true, encoding: 'utf8' }).filter((path) => path.endsWith('.md'))
const pages = ['README.md', 'ARCHITECTURE.md', ...documents.map((path) => join('docs', path))]
const text = (path: string) => readFileSync(path, 'utf8').replaceAll(/\s+/g, ' ')

test.each(['README.md', 'docs/guarantees.md'])('R50: %s states the boundary and that it is not more', (path) => {
  expect(text(path)).toMatch(BOUNDARY)
  expect(text(path)).toContain('This is not exactly-once delivery')
})

test('R50: no page promises exactly-once delivery', () => {
  const promising = pages.filter((path) =>
    /exactly[- ]once (delivery|processing|semantics)/i.test(text(path).replaceAll('not exactly-once delivery', '')),
  )
  expect(promising).toEqual([])
})
