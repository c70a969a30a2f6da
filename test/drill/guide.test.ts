/** The application of docs/guides/drill.md, as it stands there: it fails, and a few lines put it right. */
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { beforeAll, expect, test } from 'vitest'
import { examplesOf } from '../../scripts/examples.ts'
import { drill } from '../../src/drill/drill.ts'
import { DRILL_MS, failed } from './verdicts.ts'

const GUIDE = 'docs/guides/drill.md'
/** Lies in the package, so that the package's own name is found from it. */
const FOLDER = '.tmp/drill-guide'
const LINES_MAX = 10

const drills = examplesOf(GUIDE, readFileSync(GUIDE, 'utf8')).filter(({ code }) => code.includes('express()'))
const [plain = '', putRight = ''] = drills.map(({ code }) => code)

beforeAll(() => {
  if (!existsSync('dist/index.js')) throw new Error('the package is not built: npm run build')
  rmSync(FOLDER, { recursive: true, force: true })
  mkdirSync(FOLDER, { recursive: true })
  writeFileSync(`${FOLDER}/plain.drill.ts`, plain)
  writeFileSync(`${FOLDER}/put-right.drill.ts`, putRight)
})

test(
  'R48: the plain Express application of the guide fails where the guide says',
  async () => {
    const result = await drill(`${FOLDER}/plain.drill.ts`, { databaseUrl: '' })
    expect(failed(result)).toContain('delivered twice before sql:2:insert into orders: DUPLICATE')
    expect(failed(result)).toContain('other payload under the same key: DUPLICATE')
    expect(result.passed).toBe(false)
  },
  DRILL_MS,
)

test(
  'R48: put right with this package it passes everywhere, and no more than ten lines were added or changed',
  async () => {
    const before = new Set(plain.split('\n'))
    expect(putRight.split('\n').filter((line) => !before.has(line)).length).toBeLessThanOrEqual(LINES_MAX)
    const result = await drill(`${FOLDER}/put-right.drill.ts`, { databaseUrl: '' })
    expect(failed(result)).toEqual([])
    expect(result.passed).toBe(true)
  },
  DRILL_MS,
)
