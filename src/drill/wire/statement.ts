/**
 * Statement: a stable name for an SQL text, and whether what it did can outlive its process.
 *
 * @module
 */

const LABEL_CHARS = 60

/** The statement without its values: `insert into orders`, `select from users for update`, `COMMIT`. */
export function statementLabel(text: string): string {
  const statements = withoutComments(text)
    // No value may become part of a name, or a statement end in one.
    .replaceAll(/'(?:[^']|'')*'/g, '?')
    .split(';')
    .map((statement) => statement.replaceAll('"', '').replaceAll(/\s+/g, ' ').trim())
    .filter((statement) => statement !== '')
  return statements.slice(0, 3).map(oneLabel).join('; ').slice(0, LABEL_CHARS) || 'empty statement'
}

/** What a statement calls itself: the first comment in it that is a single word. */
export function ownName(text: string): string | undefined {
  return /\/\*\s*([\w.:-]+)\s*\*\//.exec(text)?.[1]
}

function withoutComments(text: string): string {
  return text.replaceAll(/\/\*[\s\S]*?\*\//g, ' ').replaceAll(/--[^\n]*/g, ' ')
}

const VERBS: readonly (readonly [RegExp, string])[] = [
  [/^(begin|start transaction)\b/, 'BEGIN'],
  [/^(commit|end)\b/, 'COMMIT'],
  [/^(rollback to|release|savepoint)\b/, ''],
  [/^(rollback|abort)\b/, 'ROLLBACK'],
]

function oneLabel(statement: string): string {
  const lower = statement.toLowerCase()
  for (const [pattern, label] of VERBS) {
    if (pattern.test(lower)) return label === '' ? lower.split(' ').slice(0, 2).join(' ') : label
  }
  const writes = /\b(insert into|delete from|update|merge into)(?: only)? ([\w$.]+)/.exec(lower)
  if (writes !== null && !/^select\b/.test(lower)) return `${writes[1]} ${writes[2]}`
  const from = /^(?:select|with)\b[\s\S]*?\bfrom ([\w$.]+)/.exec(lower)
  if (from !== null)
    // sql-built: a label for people, never sent.
    return `select from ${from[1]}${/\bfor (no key )?(update|share)\b/.test(lower) ? ' for update' : ''}`
  // A function that is called for what it does.
  const call = /^select ([\w$.]+)\s*\(/.exec(lower)
  if (call !== null) return `select ${call[1]}`
  return lower.split(' ').slice(0, 4).join(' ')
}

/** Command tags that change nothing, unless a function is called. */
const READS = new Set([
  'SELECT',
  'SHOW',
  'SET',
  'RESET',
  'BEGIN',
  'ROLLBACK',
  'SAVEPOINT',
  'RELEASE',
  'DISCARD',
  'FETCH',
])

/** Whether a statement with this command tag, answered outside of a transaction, may have changed something for good. */
export function lasts(tag: string, text: string): boolean {
  const [verb = ''] = tag.split(' ')
  if (verb === 'START') return false
  if (verb === 'SELECT')
    return /\w\s*\(/.test(
      text.replaceAll(/\b(count|now|coalesce|in|max|min|exists|any|values|and|or|where)\s*\(/gi, ''),
    )
  if (/^(INSERT|UPDATE|DELETE|MERGE)\b/.test(tag)) return !tag.endsWith(' 0')
  return !READS.has(verb) && tag !== ''
}
