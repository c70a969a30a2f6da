import { existsSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import ts from 'typescript'
import { expect, test } from 'vitest'

/** Every file that `entry` reaches, with what it imports that lies outside of `folder`. */
function reach(entry: string, folder: string): { files: readonly string[]; outside: readonly string[] } {
  if (!existsSync(entry)) throw new Error('the package is not built: npm run build')
  const files = new Set<string>()
  const outside: string[] = []
  const visit = (file: string): void => {
    if (files.has(file)) return
    files.add(file)
    for (const { fileName } of ts.preProcessFile(readFileSync(file, 'utf8'), true, true).importedFiles) {
      const path = normalize(join(dirname(file), fileName))
      if (fileName.startsWith('.') && path.startsWith(`${folder}/`)) visit(path)
      else outside.push(`${file}: ${fileName}`)
    }
  }
  visit(entry)
  return { files: [...files], outside }
}

test('the built client imports nothing outside of its folder, and not its part for Node.js', () => {
  const { files, outside } = reach('dist/client/index.js', 'dist/client')
  expect(outside).toEqual([])
  expect(files).toContain('dist/client/index.js')
  expect(files).not.toContain('dist/client/storages/file.js')
})

test('the door client/file adds modules of Node.js and nothing else', () => {
  const { outside } = reach('dist/client/storages/file.js', 'dist/client')
  expect(outside.length).toBeGreaterThan(0)
  expect(outside.filter((found) => !/: node:[a-z/]+$/.test(found))).toEqual([])
})

const options: ts.CompilerOptions = {
  lib: ['lib.es2023.d.ts', 'lib.dom.d.ts', 'lib.dom.iterable.d.ts', 'lib.dom.asynciterable.d.ts'],
  types: [],
  target: ts.ScriptTarget.ES2023,
  module: ts.ModuleKind.NodeNext,
  strict: true,
  exactOptionalPropertyTypes: true,
  noEmit: true,
  allowImportingTsExtensions: true,
}

// With the types of a browser and none of Node.js: a name that only Node.js knows would not compile.
test.each(['src/client/index.ts', 'dist/client/index.d.ts'])(
  '%s compiles with the types of a browser alone',
  (file) => {
    const program = ts.createProgram([file], options)
    const messages = ts
      .getPreEmitDiagnostics(program)
      .map((found) => `${found.file?.fileName}: ${ts.flattenDiagnosticMessageText(found.messageText, '\n')}`)
    expect(messages).toEqual([])
    expect(program.getSourceFiles().some(({ fileName }) => fileName.includes('@types/node'))).toBe(false)
  },
)
