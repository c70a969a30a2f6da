#!/usr/bin/env node
/**
 * The command `effectively-once`. Everything that can be tested lies in ./run.ts; here are the process's own things.
 *
 * @module
 */

import { readFileSync } from 'node:fs'
import { constants } from 'node:os'
import { run } from './run.ts'
import { statusLine } from './status-line.ts'

const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
  version: string
}
const stop = new AbortController()
let stoppedBy: 'SIGINT' | 'SIGTERM' | undefined
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => {
    // The second one does not wait for anything.
    if (stoppedBy !== undefined) process.exit(128 + constants.signals[signal])
    stoppedBy = signal
    stop.abort(new Error(`stopped by ${signal}`))
  })
}

const line = statusLine(process.stderr)
const code = await run(process.argv.slice(2), version, {
  out: (text) => {
    line.clear()
    console.log(text)
  },
  err: (text) => {
    line.clear()
    console.error(text)
  },
  progress: line.show,
  env: process.env,
  cwd: process.cwd(),
  signal: stop.signal,
})
// A configuration's pool would keep the process alive; what was written is written first.
const exitCode = stoppedBy !== undefined && code !== 0 ? 128 + constants.signals[stoppedBy] : code
process.stdout.write('', () => process.exit(exitCode))
