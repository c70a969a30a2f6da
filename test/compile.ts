/** Compiles a few lines as if they stood in this folder, under the project's own settings. */
import { resolve } from 'node:path'
import ts from 'typescript'

const virtual = resolve('test/compiled-lines.ts')

/** The type errors of several programs, each as its messages; one compilation for all. */
export function typeErrorsOf(programs: Readonly<Record<string, string>>): Record<string, readonly string[]> {
  const config = ts.getParsedCommandLineOfConfigFile(
    'tsconfig.json',
    { noEmit: true },
    {
      ...ts.sys,
      onUnRecoverableConfigFileDiagnostic: (diagnostic) => {
        throw new Error(ts.flattenDiagnosticMessageText(diagnostic.messageText, '\n'))
      },
    },
  )
  const options: ts.CompilerOptions = { ...config?.options, isolatedDeclarations: false, declaration: false }
  const files = new Map(Object.entries(programs).map(([name, code]) => [virtual.replace('lines', name), code]))
  const host = ts.createCompilerHost(options)
  const read = host.readFile.bind(host)
  const exists = host.fileExists.bind(host)
  host.readFile = (path) => files.get(path) ?? read(path)
  host.fileExists = (path) => files.has(path) || exists(path)
  host.getSourceFile = (path, target) => {
    const text = host.readFile(path)
    return text === undefined ? undefined : ts.createSourceFile(path, text, target)
  }
  const program = ts.createProgram([...files.keys()], options, host)
  return Object.fromEntries(
    [...files.keys()].map((path, index) => {
      const source = program.getSourceFile(path)
      const found = source === undefined ? [] : ts.getPreEmitDiagnostics(program, source)
      const messages = found.map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, '\n'))
      return [Object.keys(programs)[index] ?? '', messages]
    }),
  )
}
