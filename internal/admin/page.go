package admin

import "net/http"

func (a *Admin) pageRoutes(mux *http.ServeMux) {}
