/**
 * CPU: microseconds spent by this process and by the processes of a server, from /proc. A secondary figure that other
 * load on the machine hardly moves. Where /proc is missing, the server's share reads 0.
 *
 * @module
 */

import { readdirSync, readFileSync } from 'node:fs'

/** Microseconds of CPU. */
export interface CpuUsed {
  readonly client: number
  readonly server: number
}

export interface CpuMeter {
  read(): CpuUsed
}

export const noCpu: CpuUsed = { client: 0, server: 0 }

/** Meter for this process and for `parentPid` with its direct children, which are PostgreSQL's backends. */
export function cpuMeter(parentPid: number): CpuMeter {
  // Processes that ended keep what they had used, so that the sum never falls.
  const last = new Map<number, number>()
  return {
    read() {
      const { user, system } = process.cpuUsage()
      for (const pid of [parentPid, ...childrenOf(parentPid)]) last.set(pid, usedBy(pid) ?? last.get(pid) ?? 0)
      let server = 0
      for (const used of last.values()) server += used
      return { client: user + system, server }
    },
  }
}

function childrenOf(pid: number): number[] {
  try {
    return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').map(Number).filter(Boolean)
  } catch {
    return []
  }
}

/** Nanoseconds on a CPU come from schedstat, of all threads; a kernel without it counts ticks of 10 ms. */
function usedBy(pid: number): number | undefined {
  try {
    return readdirSync(`/proc/${pid}/task`)
      .map((task) => Number(readFileSync(`/proc/${pid}/task/${task}/schedstat`, 'utf8').split(' ')[0]) / 1_000)
      .reduce((sum, one) => sum + one, 0)
  } catch {
    return ticksOf(pid)
  }
}

function ticksOf(pid: number): number | undefined {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ')
    return (Number(fields?.[11]) + Number(fields?.[12])) * 10_000
  } catch {
    return undefined
  }
}
