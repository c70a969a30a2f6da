/** Checks that every relative link and anchor in the tracked Markdown files leads somewhere. */
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync, statSync } from 'node:fs'
import { dirname, join, normalize, relative } from 'node:path'
import { anchorsOf, linksOf } from './markdown.ts'

const files = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard', '*.md'], {
  encoding: 'utf8',
})
  .split('\n')
  .filter((path) => path !== '' && existsSync(path) && !path.startsWith('test/vectors/') && !path.startsWith('api/'))

const problems: string[] = []
for (const path of files) {
  for (const { target, line } of linksOf(readFileSync(path, 'utf8'))) {
    if (/^(https?|mailto):/.test(target)) continue
    const [file = '', anchor] = target.split('#')
    const leads = file === '' ? path : normalize(join(dirname(path), decodeURIComponent(file)))
    const where = `${path}:${line}`
    if (relative('.', leads).startsWith('..')) problems.push(`${where}: ${target} leaves the repository`)
    else if (!existsSync(leads)) problems.push(`${where}: ${target} does not exist`)
    else if (anchor !== undefined && statSync(leads).isFile() && leads.endsWith('.md')) {
      if (!anchorsOf(readFileSync(leads, 'utf8')).has(anchor)) problems.push(`${where}: ${target} has no such heading`)
    }
  }
}
for (const problem of problems) console.error(problem)
if (problems.length > 0) process.exitCode = 1
else console.log(`the links of ${files.length} documents lead somewhere`)
