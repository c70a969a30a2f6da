/**
 * Schedules: cron expressions in time zones as ticks. Data and pure functions.
 *
 * @module
 */

export type { Overlap } from './overlap.ts'
export { cronSchedule, type Schedule, type ScheduleOptions, type Tick } from './schedule.ts'
export { createScheduler, type Scheduler, type SchedulerEvent, type SchedulerOptions } from './scheduler.ts'
