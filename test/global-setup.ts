import type { TestProject } from 'vitest/node'
import { startPostgres } from '../src/testing/services/postgres.ts'

declare module 'vitest' {
  interface ProvidedContext {
    /** Connection string of the private PostgreSQL of this run. */
    postgresUrl: string
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const postgres = await startPostgres()
  project.provide('postgresUrl', postgres.url)
  return async () => {
    await postgres.stop()
  }
}
