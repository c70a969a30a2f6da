/** Thirds of the mutants, about as many in each. The mutants of one file of tests stay together: it is run unbroken once. */
import type { Mutant } from './mutant.ts'

export function thirdOf(mutants: readonly Mutant[], third: number): readonly Mutant[] {
  const files = new Map<string, Mutant[]>()
  for (const mutant of mutants) files.set(mutant.test.file, [...(files.get(mutant.test.file) ?? []), mutant])
  const thirds: Mutant[][] = [[], [], []]
  for (const ofFile of [...files.values()].toSorted((a, b) => b.length - a.length)) {
    thirds.toSorted((a, b) => a.length - b.length)[0]?.push(...ofFile)
  }
  return thirds[third] ?? []
}
