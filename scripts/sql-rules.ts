/**
 * SQL rules: no statement is built from strings that could hold more than an identifier of ours (T9).
 *
 * In src, a piece of SQL may be put together only from
 *   - text written in place, constants of the module (no caller's value can be in them) and constants made of such text,
 *   - a function of the same file that only puts together text, when every call of it gets such text,
 *   - `schema` or `#schema`, by convention the name that went through `quoted()` of src/shared/identifier.ts,
 *   - calls of `quoted()`.
 * Everything else is bound as a parameter. Where that is impossible the line above says why: `// sql-built: reason`.
 * In sql/, every file has its header and every object it makes lies in `:schema`.
 */
import ts from 'typescript'
import { parseMigration } from '../src/store/migration.ts'

const SQL = new RegExp(
  [
    String.raw`/\* effectively-once:`,
    String.raw`^\s*select\s.*\bfrom\b`,
    String.raw`^\s*select\s+pg_`,
    String.raw`^\s*insert\s+into\b`,
    String.raw`^\s*update\s+\S+(\s+as)?(\s+\w+)?\s+set\b`,
    String.raw`^\s*delete\s+from\b`,
    String.raw`^\s*(create|alter|drop|truncate)\s+(schema|table|index|function|type|role|database|trigger|sequence)\b`,
    String.raw`^\s*with\s+\w+\s+as\s+(not\s+|materialized\s+)*\(`,
    String.raw`^\s*(listen|notify|unlisten)\s`,
    String.raw`^\s*set\s+(local\s+|session\s+)?[\w.]+\s*(=|to)\s`,
  ].join('|'),
  'is',
)
const SAFE_NAMES = new Set(['schema', '#schema'])
const SAFE_CALLS = new Set(['quoted'])
const WAIVER = /\/\/ sql-built: \S/
const SAFE_METHODS = new Set(['replace', 'replaceAll'])
const DEPTH_MAX = 24

/** Text, or an expression put between text. */
type Piece = string | ts.Expression
/** What a name was made of; null = a constant of the module. */
type Constants = ReadonlyMap<string, readonly (ts.Expression | null)[]>

/** Places in a TypeScript file where SQL is put together from something else, as `path:line: what`. */
export function builtSql(path: string, text: string): string[] {
  const source = ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true)
  const constants = constantsOf(source)
  const lines = text.split('\n')
  const lineOf = (node: ts.Node): number => source.getLineAndCharacterOfPosition(node.getStart()).line
  const problems: string[] = []
  const visit = (node: ts.Node): void => {
    if (!isTemplate(node) || !SQL.test(written(node))) {
      ts.forEachChild(node, visit)
      return
    }
    for (const piece of pieces(node)) {
      if (typeof piece === 'string' || isSafe(piece, constants)) continue
      const near = lines.slice(Math.max(0, lineOf(node) - 2), lineOf(piece) + 1)
      if (near.some((line) => WAIVER.test(line))) continue
      problems.push(`${path}:${lineOf(piece) + 1}: \${${piece.getText()}} is put into SQL`)
    }
  }
  visit(source)
  return problems
}

/** What is wrong with one migration file. */
export function migrationProblems(name: string, text: string): string[] {
  const problems: string[] = []
  try {
    parseMigration(name, text)
  } catch (error) {
    problems.push(error instanceof Error ? error.message : String(error))
  }
  const made =
    /\bcreate\s+(?:or\s+replace\s+)?(?:unlogged\s+)?(?:table|function|procedure|view|materialized\s+view|type|sequence)\s+(?:if\s+not\s+exists\s+)?([^\s(]+)/gi
  for (const [, object = ''] of text.replaceAll(/--[^\n]*/g, '').matchAll(made)) {
    if (!object.startsWith(':schema.')) problems.push(`${name}: ${object} is not made in :schema`)
  }
  return problems
}

function isTemplate(node: ts.Node): node is ts.TemplateExpression | ts.BinaryExpression {
  return ts.isTemplateExpression(node) || isConcatenation(node)
}

function isConcatenation(node: ts.Node): node is ts.BinaryExpression {
  return ts.isBinaryExpression(node) && node.operatorToken.kind === ts.SyntaxKind.PlusToken
}

/** The text as it is written, with `?` for what is put between; a label in front does not hide the first word. */
function written(node: ts.Expression): string {
  return pieces(node)
    .map((piece) => (typeof piece === 'string' ? piece : '?'))
    .join('')
    .replace(/^[\s?]+/, '')
}

function pieces(node: ts.Expression): readonly Piece[] {
  if (ts.isParenthesizedExpression(node)) return pieces(node.expression)
  if (ts.isStringLiteralLike(node)) return [node.text]
  if (ts.isTemplateExpression(node)) {
    return [node.head.text, ...node.templateSpans.flatMap((span) => [span.expression, span.literal.text])]
  }
  if (isConcatenation(node)) return [...pieces(node.left), ...pieces(node.right)]
  return [node]
}

/** Constants of a file by name, wherever they are declared; a name declared twice must be safe twice. */
function constantsOf(source: ts.SourceFile): Constants {
  const found = new Map<string, (ts.Expression | null)[]>()
  const visit = (node: ts.Node): void => {
    if (ts.isVariableDeclaration(node) && ts.isIdentifier(node.name) && node.initializer !== undefined) {
      const isConst = (node.parent.flags & ts.NodeFlags.Const) !== 0
      const closed = node.parent.parent.parent === source && !/\bprocess\b/.test(node.initializer.getText())
      if (isConst) {
        found.set(node.name.text, [...(found.get(node.name.text) ?? []), closed ? null : node.initializer])
      }
    }
    ts.forEachChild(node, visit)
  }
  visit(source)
  return found
}

function isSafe(piece: Piece, constants: Constants, depth = 0): boolean {
  if (typeof piece === 'string') return true
  if (depth > DEPTH_MAX) return false
  const safe = (expression: ts.Expression): boolean => isSafe(expression, constants, depth + 1)
  if (ts.isNumericLiteral(piece)) return true
  if (ts.isParenthesizedExpression(piece)) return safe(piece.expression)
  if (ts.isConditionalExpression(piece)) return safe(piece.whenTrue) && safe(piece.whenFalse)
  if (ts.isIdentifier(piece)) {
    if (SAFE_NAMES.has(piece.text)) return true
    const given = argumentsFor(piece)
    if (given !== undefined) return given.every(safe)
    return constants.get(piece.text)?.every((made) => made === null || safe(made)) === true
  }
  if (ts.isPropertyAccessExpression(piece)) return SAFE_NAMES.has(piece.name.text) || piece.name.text === 'length'
  if (ts.isCallExpression(piece)) {
    if (ts.isPropertyAccessExpression(piece.expression)) {
      const { name, expression } = piece.expression
      const texts = piece.arguments.filter((argument) => !ts.isRegularExpressionLiteral(argument))
      return SAFE_METHODS.has(name.text) && safe(expression) && texts.every(safe)
    }
    if (!ts.isIdentifier(piece.expression)) return false
    if (SAFE_CALLS.has(piece.expression.text)) return true
    const body = macros(piece.getSourceFile()).get(piece.expression.text)?.body
    return body !== undefined && piece.arguments.every(safe) && safe(body)
  }
  const parts = pieces(piece)
  return (parts.length > 1 || typeof parts[0] === 'string') && parts.every((part) => isSafe(part, constants, depth + 1))
}

/** A function of a file that returns one expression and is only ever called, by name. */
interface Macro {
  readonly body: ts.Expression
  readonly parameters: readonly string[]
  readonly calls: readonly ts.CallExpression[]
}

const macrosByFile = new WeakMap<ts.SourceFile, ReadonlyMap<string, Macro>>()

function macros(source: ts.SourceFile): ReadonlyMap<string, Macro> {
  const known = macrosByFile.get(source)
  if (known !== undefined) return known
  const bodies = new Map<string, { body: ts.Expression; parameters: string[] }>()
  const calls = new Map<string, ts.CallExpression[]>()
  const otherUses = new Set<string>()
  const visit = (node: ts.Node): void => {
    if (ts.isVariableDeclaration(node) && ts.isIdentifier(node.name) && node.initializer !== undefined) {
      const made = node.initializer
      if (ts.isArrowFunction(made) && ts.isExpression(made.body)) {
        const parameters = made.parameters.map(({ name }) => name.getText())
        if (bodies.has(node.name.text)) otherUses.add(node.name.text)
        bodies.set(node.name.text, { body: made.body, parameters })
      }
    } else if (ts.isCallExpression(node) && ts.isIdentifier(node.expression)) {
      calls.set(node.expression.text, [...(calls.get(node.expression.text) ?? []), node])
    } else if (ts.isIdentifier(node) && !isNameOf(node)) {
      otherUses.add(node.text)
    }
    ts.forEachChild(node, visit)
  }
  visit(source)
  const found = new Map(
    [...bodies]
      .filter(([name]) => !otherUses.has(name))
      .map(([name, made]) => [name, { ...made, calls: calls.get(name) ?? [] }]),
  )
  macrosByFile.set(source, found)
  return found
}

/** Whether an identifier is a declared name, the called function of a call, or a member name. */
function isNameOf(node: ts.Identifier): boolean {
  const { parent } = node
  if (ts.isVariableDeclaration(parent) && parent.name === node) return true
  if (ts.isCallExpression(parent) && parent.expression === node) return true
  if (ts.isPropertyAccessExpression(parent) && parent.name === node) return true
  return ts.isPropertyAssignment(parent) && parent.name === node
}

/** What every call puts in for a parameter of a macro; undefined when the name is no such parameter. */
function argumentsFor(name: ts.Identifier): readonly ts.Expression[] | undefined {
  for (let node: ts.Node = name; node.parent !== undefined; node = node.parent) {
    if (!ts.isArrowFunction(node) || !ts.isVariableDeclaration(node.parent)) continue
    const macro = macros(name.getSourceFile()).get(node.parent.name.getText())
    const position = macro?.parameters.indexOf(name.text) ?? -1
    if (macro === undefined || position < 0) continue
    const byDefault = node.parameters[position]?.initializer
    const given = macro.calls.map((call) => call.arguments[position] ?? byDefault)
    return given.every((argument) => argument !== undefined) ? given : undefined
  }
  return undefined
}
