import { httpMutants } from './http.ts'
import { leasedMutants } from './leased.ts'
import { messageMutants } from './messages.ts'
import type { Mutant } from './mutant.ts'
import { operationMutants } from './operation.ts'

export const mutants: readonly Mutant[] = [...operationMutants, ...leasedMutants, ...messageMutants, ...httpMutants]
