/**
 * Reads the published cases in test/vectors (origin and licences in its README).
 */
import { readFileSync } from 'node:fs'

const folder = new URL('../vectors/', import.meta.url)

export function vectorBytes(path: string): Buffer {
  return readFileSync(new URL(path, folder))
}

/** JSON files hold arrays of cases; what a case looks like is said by the test that reads it. */
export function vectorCases<Case>(path: string): Case[] {
  return JSON.parse(vectorBytes(path).toString('utf8')) as Case[]
}
