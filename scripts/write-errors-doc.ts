/** Writes docs/errors.md. */
import { writeFileSync } from 'node:fs'
import { errorsDoc } from './errors-doc.ts'

writeFileSync('docs/errors.md', errorsDoc())
