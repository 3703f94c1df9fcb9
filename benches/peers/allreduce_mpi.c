// All-reduce (sum, f32, in place) of an MPI library, for comparison with ours.
//
// Run: mpicc -O2 -o allreduce_mpi allreduce_mpi.c && mpirun -n 2 ./allreduce_mpi SIZE...
// Prints "bytes microseconds" a line: the median over iterations of the slowest rank's time.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int arg = 1; arg < argc; arg++) {
        long bytes = atol(argv[arg]);
        int count = (int)(bytes / 4);
        float *data = malloc(bytes);
        for (int i = 0; i < count; i++) data[i] = rank + 1;
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        float expected = size * (size + 1) / 2.0f;
        if (data[0] != expected || data[count - 1] != expected) MPI_Abort(MPI_COMM_WORLD, 1);
        for (int i = 0; i < count; i++) data[i] = 0;
        int iterations = bytes <= 65536 ? 1000 : bytes <= 1 << 21 ? 100 : 20;
        double *times = calloc(iterations, sizeof *times);
        for (int i = 0; i < 3; i++)
            MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < iterations; i++) {
            double start = MPI_Wtime();
            MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            times[i] = MPI_Wtime() - start;
        }
        MPI_Allreduce(MPI_IN_PLACE, times, iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        qsort(times, iterations, sizeof *times, ascending);
        if (rank == 0) printf("%ld %.3f\n", bytes, times[iterations / 2] * 1e6);
        free(times);
        free(data);
    }
    MPI_Finalize();
    return 0;
}
