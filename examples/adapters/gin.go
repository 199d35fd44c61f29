package adapters

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// Gin returns what httplimit.New has returned as middleware of Gin: r.Use(Gin(limit)).
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
