/* More of lanes.cuh's vocabulary, for Hopper alone: boxes of a matrix that come into shared memory
 * by themselves, gates that open when they are there, and products of whole warpgroups (four warps,
 * the first a multiple of four) whose factors lie in shared memory. A kernel that uses it has a
 * body only where KD_WGMMA is defined: for sm_90a and on the CPU. */
#ifndef KD_GPU_WGMMA_LANES_CUH
#define KD_GPU_WGMMA_LANES_CUH

#include "gpu/mma_lanes.cuh"

enum {
    KD_BOX_COLS = 64, /* of 16-bit values: 128 bytes a row, the longest that is swizzled */
    KD_BOX_ALIGN = 1024
};

#ifdef KD_GPU_EMULATE
#define KD_WGMMA
#include "gpu/emulate_wgmma.h"
#else

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define KD_WGMMA
#endif

#include <cuda.h>

/* A matrix of 16-bit values in device memory, of which boxes of KD_BOX_COLS columns and a fixed
 * number of rows are read: rows of 128 bytes, whose 16-byte chunk c lies at c ^ row % 8, zeros
 * beyond the matrix. */
typedef CUtensorMap kd_box_map;

KD_DEV uint32_t kd_shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
/* A gate (8 bytes of shared memory) opens when `count` have arrived and all bytes that were
 * expected are there, and is closed again for the next time. After kd_gates_ready and a barrier all
 * may use it. */
KD_DEV void kd_gate_init(uint64_t *gate, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(kd_shared_at(gate)), "r"(count)
                 : "memory");
}
KD_DEV void kd_gates_ready(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
KD_DEV void kd_gate_arrive(uint64_t *gate)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(kd_shared_at(gate)) : "memory");
}
KD_DEV void kd_gate_expect(uint64_t *gate, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(kd_shared_at(gate)),
                 "r"(bytes)
                 : "memory");
}
/* Until it has opened for the turn of this parity (0, 1, 0, ...); parity 1 at first: at once. */
KD_DEV void kd_gate_wait(uint64_t *gate, uint32_t parity)
{
    uint32_t open;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(open)
                     : "r"(kd_shared_at(gate)), "r"(parity)
                     : "memory");
    } while (!open);
}
/* The box whose first value is at (col, row); one thread asks. Its bytes count at the gate. */
KD_DEV void kd_load_box(void *shared, const kd_box_map *map, int col, int row, uint64_t *gate)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3}], [%4];" ::"r"(kd_shared_at(shared)),
        "l"(map), "r"(col), "r"(row), "r"(kd_shared_at(gate))
        : "memory");
}
/* `bytes` as they lie, a multiple of 16; both places at multiples of 16. */
KD_DEV void kd_load_bytes(void *shared, const void *from, int bytes, uint64_t *gate)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(kd_shared_at(shared)),
                 "l"(from), "r"(bytes), "r"(kd_shared_at(gate))
                 : "memory");
}
/* What this thread wrote to shared memory is a factor for whoever meets it at a barrier. */
KD_DEV void kd_shared_written(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* A factor: the rows of a box, or those from a multiple of eight on; and the same one `col` columns
 * further, a multiple of 16. */
KD_DEV uint64_t kd_factor(const unsigned char *box)
{
    const uint64_t eight_rows = KD_BOX_ALIGN / 16, swizzle128 = 1;
    return (kd_shared_at(box) & 0x3ffffu) >> 4 | 1u << 16 | eight_rows << 32 | swizzle128 << 62;
}
KD_DEV uint64_t kd_factor_at(uint64_t factor, int col)
{
    return factor + (uint64_t)(2 * col >> 4);
}
/* Before the first product that a thread's registers are part of, and after others used them. */
KD_DEV void kd_product_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/* Products so far become a group; waits for all groups but the last `later`. */
KD_DEV void kd_product_group(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int later> KD_DEV void kd_product_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(later) : "memory");
}
/* Nothing that reads d moves to before this. */
KD_DEV void kd_product_done(float (*d)[4])
{
#pragma unroll
    for (int i = 0; i < 128; i++)
        asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}
/* d = a[64][16] b[256][16]^T + (add ? d : 0) in bf16, sums in fp32; asynchronous. d[q]: a lane's
 * part of the fragment (mma_lanes.cuh) at row 16 w of a, w the warp of the four, and row 8 q of b.
 */
KD_DEV void kd_product_bf16(float (*d)[4], uint64_t a, uint64_t b, bool add)
{
#define KD_FOUR(x) "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127},"
                 " %128, %129, p, 1, 1, 0, 0;\n}"
                 : KD_FOUR(d[0]), KD_FOUR(d[1]), KD_FOUR(d[2]), KD_FOUR(d[3]), KD_FOUR(d[4]),
                   KD_FOUR(d[5]), KD_FOUR(d[6]), KD_FOUR(d[7]), KD_FOUR(d[8]), KD_FOUR(d[9]),
                   KD_FOUR(d[10]), KD_FOUR(d[11]), KD_FOUR(d[12]), KD_FOUR(d[13]), KD_FOUR(d[14]),
                   KD_FOUR(d[15]), KD_FOUR(d[16]), KD_FOUR(d[17]), KD_FOUR(d[18]), KD_FOUR(d[19]),
                   KD_FOUR(d[20]), KD_FOUR(d[21]), KD_FOUR(d[22]), KD_FOUR(d[23]), KD_FOUR(d[24]),
                   KD_FOUR(d[25]), KD_FOUR(d[26]), KD_FOUR(d[27]), KD_FOUR(d[28]), KD_FOUR(d[29]),
                   KD_FOUR(d[30]), KD_FOUR(d[31])
                 : "l"(a), "l"(b), "r"((int)add));
#undef KD_FOUR
}
/* Nothing that reads d moves to before this. */
KD_DEV void kd_product_done_of(float (&d)[16][4])
{
#pragma unroll
    for (int i = 0; i < 64; i++)
        asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}
/* d = a[64][16] b[128][16]^T + (add ? d : 0) in half floats, as above. */
KD_DEV void kd_product_halves(float (&d)[16][4], uint64_t a, uint64_t b, bool add)
{
#define KD_FOUR(x) "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
#define KD_SIXTEEN                                                                                 \
    KD_FOUR(d[0]), KD_FOUR(d[1]), KD_FOUR(d[2]), KD_FOUR(d[3]), KD_FOUR(d[4]), KD_FOUR(d[5]),      \
        KD_FOUR(d[6]), KD_FOUR(d[7]), KD_FOUR(d[8]), KD_FOUR(d[9]), KD_FOUR(d[10]),                \
        KD_FOUR(d[11]), KD_FOUR(d[12]), KD_FOUR(d[13]), KD_FOUR(d[14]), KD_FOUR(d[15])
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                 " %64, %65, p, 1, 1, 0, 0;\n}"
                 : KD_SIXTEEN
                 : "l"(a), "l"(b), "r"((int)add));
}
/* d += a b^T, a's rows in registers: each warp's sixteen as in kd_mma_halves. */
KD_DEV void kd_product_halves_rows(float (&d)[16][4], const kd_h2 a[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                 " {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                 : KD_SIXTEEN
                 : "r"(a[0].bits), "r"(a[1].bits), "r"(a[2].bits), "r"(a[3].bits), "l"(b));
#undef KD_SIXTEEN
#undef KD_FOUR
}
/* Device memory that another block writes before kd_turn_end. */
KD_DEV void kd_turn_wait(const int32_t *turn, int32_t from)
{
    int32_t now;
    do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    } while (now < from);
}
KD_DEV void kd_turn_end(int32_t *turn, int32_t next)
{
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(next) : "memory");
}
#endif
#endif
