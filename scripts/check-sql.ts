/** Checks src and sql by the rules of ./sql-rules.ts. */
import { readdirSync, readFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { builtSql, migrationProblems } from './sql-rules.ts'

function filesUnder(folder: string, end: string): string[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(end))
    .map((entry) => join(entry.parentPath, entry.name))
    .sort()
}

const migrations = filesUnder('sql', '.sql')
const problems = [
  ...filesUnder('src', '.ts').flatMap((path) => builtSql(path, readFileSync(path, 'utf8'))),
  ...migrations.flatMap((path) => migrationProblems(basename(path), readFileSync(path, 'utf8'))),
]
for (const problem of problems) console.error(problem)
if (problems.length > 0) {
  console.error('Bind values as parameters, quote identifiers with quoted(), or say why not: // sql-built: reason')
  process.exitCode = 1
} else {
  console.log(`${migrations.length} migrations are well-formed and no SQL in src is built from strings`)
}
