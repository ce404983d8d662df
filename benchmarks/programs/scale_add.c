// scale_add of own_triton.py at 100 elements.
int launch(const float *x, const float *bias, const float *before, float *total, float *y) {
    for (int i = 0; i < 100; i++) {
        y[i] = x[i] * 0.5f + bias[i];
        total[i] = before[i] + y[i];
    }
    return 0;
}
