/** The text of docs/errors.md, made from the table of codes. `npm run docs:errors` writes it; a test compares both. */
import { ERRORS, type ErrorCode, type ErrorFacts } from '../src/shared/errors.ts'

const yesNo = (value: boolean): string => (value ? 'yes' : 'no')

function entry(code: string, facts: ErrorFacts): string {
  const { status, retryable, retryAfter, safeNewKey, when, hint } = facts
  return [
    `## ${code}`,
    '',
    when,
    '',
    `- What to do: ${hint}`,
    `- HTTP status: ${status ?? "the handler's own"}`,
    `- Retryable with the same key: ${yesNo(retryable)}${retryAfter ? ', after `retryAfterMs`' : ''}`,
    ...(safeNewKey === null ? [] : [`- A new key for the same intent is safe: ${yesNo(safeNewKey)}`]),
  ].join('\n')
}

/** docs/errors.md as it must be. */
export function errorsDoc(errors: Readonly<Record<ErrorCode, ErrorFacts>> = ERRORS): string {
  const codes = Object.entries(errors)
  const rows = codes.map(
    ([code, { status, retryable, when }]) =>
      `| [${code}](#${code.toLowerCase()}) | ${status ?? '-'} | ${yesNo(retryable)} | ${when} |`,
  )
  return `# Errors

<!-- Generated from src/shared/errors.ts by \`npm run docs:errors\`; do not edit. -->

Everything that can go wrong on our side is a \`OnceError\` with a stable \`code\`, and with \`retryable\`, \`retryAfterMs\`,
\`status\`, \`safeNewKey\`, \`hint\` and \`docs\`. Narrow by \`code\`, never by the message. A wrong argument is a \`TypeError\`
that names the option. An error of your own work passes through unchanged.

\`\`\`ts
import { isOnceError } from 'effectively-once'

export function statusOf(error: unknown): number {
  return isOnceError(error) ? (error.status ?? 500) : 500
}
\`\`\`

| Code | HTTP | Retryable | When |
| --- | --- | --- | --- |
${rows.join('\n')}

${codes.map(([code, facts]) => entry(code, facts)).join('\n\n')}
`
}
