/** Checks that docs/errors.md is what the table of codes says, neither more nor less. */
import { readFileSync } from 'node:fs'
import { errorsDoc } from './errors-doc.ts'

if (readFileSync('docs/errors.md', 'utf8') === errorsDoc()) {
  console.log('docs/errors.md is up to date')
} else {
  console.error('docs/errors.md and src/shared/errors.ts differ: run `npm run docs:errors`')
  process.exitCode = 1
}
