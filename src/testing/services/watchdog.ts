/**
 * Watchdog: what a private server leaves behind goes when the process that started it goes, whatever ended it.
 *
 * A shell of its own process group waits on a pipe from this process. Its end means that nobody will stop the server any
 * more, or that it was stopped: a PostgreSQL that still runs is ended, and the folder is removed.
 *
 * @module
 */

import { spawn } from 'node:child_process'

/** Servers that are being killed still write: removing is tried for a few seconds. */
const SCRIPT = `
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  rm -rf "$1" 2>/dev/null
  sleep 0.2
  [ -e "$1" ] || exit 0
done
`

/** Watches over `folder` for as long as this process lives. */
export function watchFolder(folder: string): void {
  // Not of the terminal's group: what interrupts this process must not end the shell as well.
  const shell = spawn('/bin/sh', ['-c', SCRIPT, 'watchdog', folder], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  // Without a shell the folder stays.
  shell.on('error', () => {})
  shell.stdin.on('error', () => {})
  shell.unref()
}
