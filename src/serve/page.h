/* The built-in chat page: three files compiled in (src/serve/page/), nothing from outside. */
#ifndef KD_SERVE_PAGE_H
#define KD_SERVE_PAGE_H

#include "net/srv.h"

void kd_page_html(void *ctx, struct kd_req *r);
void kd_page_js(void *ctx, struct kd_req *r);
void kd_page_css(void *ctx, struct kd_req *r);

#endif
