#include "codec/quant.h"

#include "base/assert.h"

/* `damping` of the default recipe and its row power were chosen by measurement (docs/numerics.md).
 */
struct kd_recipe kd_recipe_of(enum kd_recipe_name name)
{
    switch (name) {
    case KD_RECIPE_UPSTREAM:
        return (struct kd_recipe){.feedback = true, .damping = 0.025f, .seam = 128};
    case KD_RECIPE_PLAIN:
        return (struct kd_recipe){.damping = 0.025f, .seam = 128};
    case KD_RECIPE_DEFAULT:
    case KD_RECIPE_AUTO:
        return (struct kd_recipe){.feedback = true,
                                  .matched = true,
                                  .row_power = 0.5f,
                                  .refit = true,
                                  .damping = 0.05f,
                                  .seam = 128};
    }
    kd_assert_fail("a named recipe", __FILE__, __LINE__);
    return (struct kd_recipe){0};
}

const char *kd_recipe_text(enum kd_recipe_name name)
{
    static const char *const text[] = {"default", "upstream", "plain", "auto"};
    return text[name];
}
