// As much of MPI as mpi.cu calls, so that it compiles where no MPI is installed. Not for running.
#pragma once
typedef int MPI_Comm;
typedef int MPI_Datatype;
typedef int MPI_Op;
constexpr int MPI_COMM_WORLD = 0, MPI_BYTE = 1, MPI_INT = 2, MPI_SUM = 0;
#define MPI_IN_PLACE ((void*)1)
int MPI_Init(int*, char***);
int MPI_Comm_rank(MPI_Comm, int*);
int MPI_Comm_size(MPI_Comm, int*);
int MPI_Bcast(void*, int, MPI_Datatype, int, MPI_Comm);
int MPI_Allreduce(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Barrier(MPI_Comm);
double MPI_Wtime();
int MPI_Finalize();
