#include "serve/page.h"

/* Made at build time from src/serve/page/ (cmake/embed.cmake). */
extern const unsigned char kd_page_html_data[], kd_page_js_data[], kd_page_css_data[];
extern const unsigned long kd_page_html_bytes, kd_page_js_bytes, kd_page_css_bytes;

static void send(struct kd_req *r, const char *type, const unsigned char *data, unsigned long bytes)
{
    kd_req_add_header(
        r, "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    kd_req_add_header(r, "Referrer-Policy", "no-referrer");
    kd_req_add_header(r, "Cross-Origin-Opener-Policy", "same-origin");
    kd_req_add_header(r, "Cache-Control", "no-cache");
    kd_req_reply(r, 200, type, data, bytes);
}

void kd_page_html(void *ctx, struct kd_req *r)
{
    (void)ctx;
    send(r, "text/html; charset=utf-8", kd_page_html_data, kd_page_html_bytes);
}

void kd_page_js(void *ctx, struct kd_req *r)
{
    (void)ctx;
    send(r, "text/javascript; charset=utf-8", kd_page_js_data, kd_page_js_bytes);
}

void kd_page_css(void *ctx, struct kd_req *r)
{
    (void)ctx;
    send(r, "text/css; charset=utf-8", kd_page_css_data, kd_page_css_bytes);
}
