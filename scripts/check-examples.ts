/** Type-checks the examples of README.md and docs against the built package; a test runs those marked `run`. */
import { typeErrors, writeExamples } from './examples.ts'

const examples = writeExamples('.tmp/examples-types')
const problems = typeErrors(examples)
for (const problem of problems) console.error(problem)
if (problems.length > 0) process.exitCode = 1
else
  console.log(
    `${examples.length} examples type-check, ${examples.filter(({ run }) => run).length} of them are run by a test`,
  )
