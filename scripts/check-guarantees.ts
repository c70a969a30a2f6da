/**
 * Guarantees: every id that the documents promise has tests, or says `planned`.
 *
 * Ids (I.., R.., B.., SC.., T..) stand in the names of tests. Two forms in docs/*.md are checked against them:
 *   - a list between `<!-- tests I1 -->` and `<!-- end -->`: every test named there exists and carries the id;
 *   - the last cell of a table row whose first cell is an id: every file linked there has a test with the id.
 * A test that nobody lists fails nothing, so that a new test needs no change here. `--write` fills lists and cells in
 * again from the tests; a list or cell without tests keeps its sentence, which must begin with `planned`.
 */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import ts from 'typescript'

interface Claim {
  /** Names of the groups around it and its own, as one line. */
  readonly name: string
  readonly file: string
  readonly ids: ReadonlySet<string>
}

const DOCS = ['docs/guarantees.md', 'docs/failure-classes.md', 'docs/threats.md']
const ID = /\b(I|R|B|SC|T)(\d{1,3})\b(?:-\1(\d{1,3})\b)?/g
const LIST = /<!-- tests (\S+) -->\n([\s\S]*?)<!-- end -->/g
const ROW = /^(\| *(?:I|R|B|SC|T)\d{1,3} *\|.*\|) *([^|\n]*?) *\|$/gm

/** `R09` and `R9` are one. */
const normal = (id: string): string => id.replace(/^([A-Z]+)0+/, '$1')

/** Ids of a name; `I6-I9` stands for four of them. */
function idsOf(name: string): ReadonlySet<string> {
  const ids = new Set<string>()
  for (const [, letters = '', first = '', last = first] of name.matchAll(ID)) {
    for (let number = Number(first); number <= Number(last); number += 1) ids.add(normal(`${letters}${number}`))
  }
  return ids
}

function filesBelow(folder: string, suffix: string): readonly string[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith(suffix))
    .map((path) => join(folder, path))
    .sort()
}

/** Tests and conformance cases of one file. */
function claimsOf(file: string): readonly Claim[] {
  const source = ts.createSourceFile(file, readFileSync(file, 'utf8'), ts.ScriptTarget.Latest)
  const isCases = file.endsWith('.cases.ts')
  const claims: Claim[] = []
  const visit = (node: ts.Node, groups: readonly string[]): void => {
    let inside = groups
    if (ts.isCallExpression(node)) {
      const root = rootOf(node.expression)
      const title = textOf(node.arguments[0])
      if (title !== undefined && root === 'describe') inside = [...groups, title]
      if (title !== undefined && (root === 'test' || root === 'it')) add(title, groups)
    }
    if (isCases && ts.isPropertyAssignment(node) && ts.isIdentifier(node.name) && node.name.text === 'name') {
      const title = textOf(node.initializer)
      if (title !== undefined) add(title, groups)
    }
    ts.forEachChild(node, (child) => visit(child, inside))
  }
  const add = (title: string, groups: readonly string[]): void => {
    const name = [...groups, title].join(' › ')
    claims.push({ name, file, ids: idsOf(name) })
  }
  visit(source, [])
  return claims
}

/** `test` for `test`, `test.skipIf(x)` and `test.each([])`. */
function rootOf(expression: ts.Expression): string | undefined {
  if (ts.isIdentifier(expression)) return expression.text
  if (ts.isPropertyAccessExpression(expression) || ts.isCallExpression(expression)) return rootOf(expression.expression)
  if (ts.isTaggedTemplateExpression(expression)) return rootOf(expression.tag)
  return undefined
}

/** Text of a literal; what a template fills in becomes `…`. */
function textOf(node: ts.Node | undefined): string | undefined {
  if (node === undefined) return undefined
  if (ts.isStringLiteralLike(node)) return node.text
  if (!ts.isTemplateExpression(node)) return undefined
  return node.head.text + node.templateSpans.map(({ literal }) => `…${literal.text}`).join('')
}

const claims = [
  ...filesBelow('src', '.cases.ts'),
  ...filesBelow('test', '.cases.ts'),
  ...filesBelow('test', '.test.ts'),
].flatMap(claimsOf)
const problems: string[] = []
const promised = new Set<string>()

function withId(given: string): readonly Claim[] {
  const id = normal(given)
  promised.add(id)
  return claims.filter(({ ids }) => ids.has(id))
}

const link = (doc: string, file: string): string => relative(dirname(doc), file)
const escaped = (name: string): string => name.replaceAll(/[\\`*_<>[\]|]/g, '\\$&')

function listOf(doc: string, id: string): readonly string[] {
  return withId(id).map(({ name, file }) => `- ${escaped(name)} ([${file.split('/').at(-1)}](${link(doc, file)}))`)
}

function cellOf(doc: string, id: string): readonly string[] {
  const files = new Set(withId(id).map(({ file }) => file))
  return [...files].map(
    (file) =>
      `[${file
        .split('/')
        .at(-1)
        ?.replace(/\.(test|cases)\.ts$/, '')}](${link(doc, file)})`,
  )
}

/** The text with lists and cells filled in from the tests. */
function written(doc: string, text: string): string {
  return text
    .replaceAll(LIST, (whole, id: string) => {
      const list = listOf(doc, id)
      return list.length === 0 ? whole : `<!-- tests ${id} -->\n\n${list.join('\n')}\n\n<!-- end -->`
    })
    .replaceAll(ROW, (whole, before: string) => {
      const cell = cellOf(doc, /\w+/.exec(before)?.[0] ?? '')
      return cell.length === 0 ? whole : `${before} ${cell.join(', ')} |`
    })
}

function checkOne(doc: string, id: string, named: readonly string[], known: readonly string[], text: string): void {
  for (const name of named) if (!known.includes(name)) problems.push(`${doc}: ${id} names what no test says: ${name}`)
  const planned = /^\s*(- )?planned\b/.test(text)
  if (named.length === 0 && !planned) problems.push(`${doc}: ${id} has neither tests nor the word "planned"`)
  if (planned && known.length > 0) problems.push(`${doc}: ${id} is "planned" and has tests: npm run docs:guarantees`)
}

function check(doc: string, text: string): void {
  for (const [, id = '', body = ''] of text.matchAll(LIST)) {
    const named = body.split('\n').filter((line) => line.startsWith('- ') && !line.startsWith('- planned'))
    checkOne(doc, id, named, listOf(doc, id), body)
  }
  for (const [, before = '', cell = ''] of text.matchAll(ROW)) {
    const id = /\w+/.exec(before)?.[0] ?? ''
    checkOne(doc, id, cell.match(/\[[^\]]*\]\([^)]*\)/g) ?? [], cellOf(doc, id), cell)
  }
}

for (const doc of DOCS) {
  const text = readFileSync(doc, 'utf8')
  if (process.argv.includes('--write')) {
    const changed = written(doc, text)
    if (changed !== text) writeFileSync(doc, changed)
    check(doc, changed)
  } else {
    check(doc, text)
  }
}
for (let number = 1; number <= 16; number += 1) {
  if (!promised.has(`I${number}`)) problems.push(`docs/guarantees.md: I${number} is missing`)
}
for (const id of new Set(claims.flatMap(({ ids }) => [...ids]))) {
  if (!promised.has(id)) problems.push(`${id} stands in the name of a test and is explained in no document`)
}
for (const problem of problems) console.error(problem)
if (problems.length > 0) process.exitCode = 1
else console.log(`${promised.size} ids are explained, ${claims.length} tests and cases were read`)
