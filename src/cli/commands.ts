/**
 * The commands, in the order of the help text. A new one is one file in ./commands and one line here; the file exports
 * a function that adds the command to the program and runs it with what `CliIo` gives.
 *
 * @module
 */

export { demo } from './commands/demo.ts'
export { drill } from './commands/drill.ts'
export { migrate } from './commands/migrate.ts'
export { list, redrive, resolve } from './commands/operations.ts'
export { purge } from './commands/purge.ts'
export { relay } from './commands/relay.ts'
