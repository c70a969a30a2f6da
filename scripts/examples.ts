/**
 * Examples: the TypeScript blocks of README.md and docs, as programs.
 *
 * A block that starts with three backticks and
 *   - `ts`            is a program of its own and is type-checked against the built package,
 *   - `ts continued`  goes on where the block before it in the same file stopped,
 *   - `ts run`        is executed as well, with DATABASE_URL naming an empty database (and AMQP_URL where there is one),
 *   - `ts fragment`   is not checked; for a few lines that would need a page of context.
 * `ts run continued` is both. What a block needs and the reader does not stands before it in a comment:
 * `<!-- setup` newline, code, newline `-->`; what is to be closed or checked behind it stands in `<!-- after` ... `-->`.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import ts from 'typescript'
import { fencesOf } from './markdown.ts'

export interface Example {
  /** `README.md:12`. */
  readonly name: string
  /** Whether it is executed. */
  readonly run: boolean
  readonly code: string
}

const LANGUAGES = new Set(['ts', 'typescript'])
const MARKS = new Set(['run', 'continued', 'fragment'])

/** Files whose blocks are examples. */
export function exampleFiles(): readonly string[] {
  const docs = readdirSync('docs', { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.md'))
    .map((path) => join('docs', path))
    .sort()
  return [...(existsSync('README.md') ? ['README.md'] : []), ...docs]
}

/** The examples of one file; a block continued later appears once, with all its parts. */
export function examplesOf(path: string, markdown: string): readonly Example[] {
  const examples: Example[] = []
  for (const fence of fencesOf(markdown)) {
    const [language = '', ...marks] = fence.words
    if (!LANGUAGES.has(language) || marks.includes('fragment')) continue
    const name = `${path}:${fence.line}`
    const unknown = marks.find((mark) => !MARKS.has(mark))
    if (unknown !== undefined) throw new Error(`${name}: "${unknown}" is no mark; known: ${[...MARKS].join(', ')}`)
    const run = marks.includes('run')
    const code = `${fence.setup}\n${fence.code}${fence.after === '' ? '' : `${fence.after}\n`}`
    const before = marks.includes('continued') ? examples.pop() : undefined
    if (marks.includes('continued') && before === undefined) throw new Error(`${name}: there is nothing to continue`)
    examples.push({
      name: before?.name ?? name,
      run: run || before?.run === true,
      code: `${before?.code ?? ''}${code}`,
    })
  }
  return examples
}

/** All examples, written as modules below `folder`, which lies in the package so that its own name resolves. */
export function writeExamples(folder: string): readonly (Example & { readonly file: string })[] {
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  return exampleFiles().flatMap((path) =>
    examplesOf(path, readFileSync(path, 'utf8')).map((example) => {
      const file = resolve(folder, `${example.name.replaceAll(/[^a-zA-Z0-9]+/g, '-')}.ts`)
      writeFileSync(file, `${example.code}\nexport {}\n`)
      return { ...example, file }
    }),
  )
}

/** Type errors of the modules, as `name: message`. */
export function typeErrors(examples: readonly (Example & { readonly file: string })[]): readonly string[] {
  const program = ts.createProgram(
    examples.map(({ file }) => file),
    {
      target: ts.ScriptTarget.ES2023,
      lib: ['lib.es2023.d.ts'],
      types: ['node'],
      module: ts.ModuleKind.NodeNext,
      strict: true,
      noUncheckedIndexedAccess: true,
      exactOptionalPropertyTypes: true,
      noEmit: true,
      skipLibCheck: false,
    },
  )
  const names = new Map(examples.map(({ file, name }) => [file, name]))
  return ts.getPreEmitDiagnostics(program).map(({ file, start = 0, messageText }) => {
    const message = ts.flattenDiagnosticMessageText(messageText, '\n')
    if (file === undefined) return message
    const { line } = file.getLineAndCharacterOfPosition(start)
    const at = file.text.split('\n')[line]?.trim() ?? ''
    return `${names.get(file.fileName) ?? file.fileName}: ${message}\n    ${at}`
  })
}
