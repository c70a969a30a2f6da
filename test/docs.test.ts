import { execFile } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { promisify } from 'node:util'
import { describe, expect, test } from 'vitest'
import { errorsDoc } from '../scripts/errors-doc.ts'
import { examplesOf, writeExamples } from '../scripts/examples.ts'
import { anchorsOf, fencesOf, linksOf } from '../scripts/markdown.ts'
import { ERRORS } from '../src/shared/errors.ts'
import { startRedis } from '../src/testing/services/redis.ts'
import { createDatabase } from './database.ts'
import { amqpUrl } from './rabbitmq.ts'
import { canStartRedis } from './redis.ts'

describe('documents', () => {
  test('docs/errors.md has every code of the table and no other', () => {
    const text = readFileSync('docs/errors.md', 'utf8')
    const headings = [...text.matchAll(/^## (.+)$/gm)].map(([, code]) => code)
    expect(headings).toEqual(Object.keys(ERRORS))
    expect(text).toBe(errorsDoc())
  })

  test('every code leads to its heading in docs/errors.md', () => {
    const anchors = anchorsOf(readFileSync('docs/errors.md', 'utf8'))
    expect(Object.keys(ERRORS).filter((code) => !anchors.has(code.toLowerCase()))).toEqual([])
  })

  test('fences: language, marks, line, indentation and the hidden parts around them are read', () => {
    const text =
      '# A\n\n<!-- setup\nconst a = 1\n-->\n\n```ts run\na\n```\n\n<!-- after\na = 2\n-->\n\n1. x\n   ```sh\n   npm test\n   ```\n'
    expect(fencesOf(text)).toEqual([
      { words: ['ts', 'run'], code: 'a\n', line: 7, setup: 'const a = 1', after: 'a = 2' },
      { words: ['sh'], code: 'npm test\n', line: 16, setup: '', after: '' },
    ])
  })

  test('examples: marks decide what is a program, what goes on, what is run and what is left out', () => {
    const text = '```ts\nlet a = 1\n```\n```ts run continued\na = 2\n```\n```ts fragment\n...\n```\n```sh\nls\n```\n'
    expect(examplesOf('x.md', text)).toEqual([{ name: 'x.md:1', run: true, code: '\nlet a = 1\n\na = 2\n' }])
    expect(() => examplesOf('x.md', '```ts runs\n```\n')).toThrow('x.md:1: "runs" is no mark')
    expect(() => examplesOf('x.md', '```ts continued\n```\n')).toThrow('nothing to continue')
  })

  test('links and anchors: code is no link, headings make anchors as on GitHub', () => {
    const text =
      '# A `b` & c\n# A `b` & c\n[x](./y.md#z "t") `[no](no.md)`\n```\n[no](no.md)\n```\n[r]: other.md\n![i](i.png)\n'
    expect(linksOf(text).map(({ target }) => target)).toEqual(['./y.md#z', 'other.md', 'i.png'])
    expect(linksOf(text).map(({ line }) => line)).toEqual([3, 7, 8])
    expect([...anchorsOf(text)]).toEqual(['a-b--c', 'a-b--c-1'])
  })

  test('README: the first screen says what it is, shows about ten lines that are run, and the two commands', () => {
    const screen = readFileSync('README.md', 'utf8')
      .replaceAll(/<!--[\s\S]*?-->\n+/g, '')
      .split('\n')
      .slice(0, 32)
    const [heading, , ...what] = screen
    expect(heading).toBe('# effectively-once')
    expect(what[0]).toMatch(/^One intent, one outcome\./)
    const [example, commands] = fencesOf(`${screen.join('\n')}\n`)
    expect(example?.words).toEqual(['ts', 'run'])
    expect(example?.code.trimEnd().split('\n').length).toBeLessThanOrEqual(12)
    expect(commands?.code.match(/^\S+ \S+( \S+)?/gm)?.map((line) => line.trim())).toEqual(['npm run demo', 'npm test'])
  })

  test('README: what is said to be missing is in no door, command or folder', () => {
    const missing = /## What it does not do yet\n([\s\S]*?)\n## /.exec(readFileSync('README.md', 'utf8'))?.[1] ?? ''
    for (const word of ['Webhooks', 'console', '`doctor`']) expect(missing).toContain(word)
    const commands = readFileSync('src/cli/commands.ts', 'utf8')
    for (const { 1: name = '' } of readFileSync('docs/cli.md', 'utf8').matchAll(/^\| `(\w+)` \|/gm)) {
      expect(missing, `the command ${name} exists`).not.toContain(`\`${name}\``)
    }
    expect(commands).not.toContain('doctor')
    const doors = Object.keys((JSON.parse(readFileSync('package.json', 'utf8')) as { exports: object }).exports)
    expect(doors.filter((door) => /webhook|console|kafka|sqs|mysql|sqlite/.test(door))).toEqual([])
  })

  const run = writeExamples('.tmp/examples').filter((example) => example.run)

  const amqpNeeded = (code: string) => code.includes('AMQP_URL')

  test.for(run)(
    'the example of $name runs against the built package',
    { timeout: 120_000 },
    async (example, { skip }) => {
      const { code, file } = example
      if (amqpNeeded(code) && amqpUrl === null) skip('no RabbitMQ')
      const redisNeeded = code.includes('REDIS_URL')
      if (redisNeeded && !canStartRedis) skip('no Redis')
      if (!existsSync('dist/index.js')) throw new Error('the package is not built: npm run build')
      const redis = redisNeeded ? await startRedis() : undefined
      const database = await createDatabase()
      try {
        await promisify(execFile)(process.execPath, ['--import', 'tsx', file], {
          env: { ...process.env, DATABASE_URL: database.url, AMQP_URL: amqpUrl ?? '', REDIS_URL: redis?.url ?? '' },
          timeout: 90_000,
        })
      } finally {
        await Promise.all([database.drop(), redis?.stop()])
      }
    },
  )
})
