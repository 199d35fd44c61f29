module github.com/dipwell/dipwell

go 1.26
