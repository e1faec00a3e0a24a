/* GET /: the page, which needs nothing from anywhere else. page.html is built into the program. */
#include "serve/api.h"

extern const unsigned char page_html[];
extern const size_t page_html_length;

enum MHD_Result api_page(struct exchange *x)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(page_html_length, (void *)(uintptr_t)page_html, MHD_RESPMEM_PERSISTENT);
    if (r) {
        MHD_add_response_header(r, "content-type", "text/html; charset=utf-8");
        MHD_add_response_header(r, "content-security-policy",
                                "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
                                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
        MHD_add_response_header(r, "x-content-type-options", "nosniff");
    }
    return exchange_queue(x, 200, r);
}
