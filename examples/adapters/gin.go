package adapters

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// Gin returns middleware of Gin made from what httplimit.New has returned: r.Use(Gin(limit)).
func Gin(limit func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		allowed := false
		limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			allowed, c.Request = true, r
			c.Next()
		})).ServeHTTP(c.Writer, c.Request)
		if !allowed {
			c.Abort()
		}
	}
}
